"""The two tabular forms of `nvidia-smi`: its plain table, and the CSV of `--query-gpu`.

Both become the same flat fields per GPU as `-q`, so that one set of rules judges them all.
"""

import re

from sickbay.readers.nvidia_smi_state import is_action
from sickbay.readers.nvidia_smi_tree import GpuFields, StateLog
from sickbay.readers.parts import bus_id

_HEAD = re.compile(r"^\s*(\d+)\s+(\S.*?)\s+(On|Off|N/A|Enabled|Disabled|ERR!)\s*$")
_BUS = re.compile(
    r"^\s*([0-9A-F]{1,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\s+(\S.*?)\s*$", re.IGNORECASE
)
_READINGS = re.compile(r"^\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*/\s*(\S.*?)\s*$")
_ON = {"on": "Enabled", "off": "Disabled"}
_ROW_CELLS = 3
_LONGEST_ROW = 4_000
_NAMED = re.compile(r"[a-z][a-z0-9_.]*(?: \[[^\]]*\])?")
# Columns of `--query-gpu` and the other query options, as the fields of `-q`.
_COLUMNS = {
    "index": "index",
    "gpu_bus_id": "bus_id",
    "pci.bus_id": "bus_id",
    "gpu_uuid": "uuid",
    "uuid": "uuid",
    "gpu_serial": "serial",
    "serial": "serial",
    "persistence_mode": "persistence_mode",
    "mig.mode.current": "mig_mode/current",
    "ecc.mode.current": "ecc_mode/current",
    "ecc.errors.uncorrected.volatile.sram": "ecc_errors/volatile/sram_uncorrectable",
    "ecc.errors.uncorrected.volatile.dram": "ecc_errors/volatile/dram_uncorrectable",
    "ecc.errors.uncorrected.volatile.device_memory": "ecc_errors/volatile/dram_uncorrectable",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors/volatile/dram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.sram": "ecc_errors/aggregate/sram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.dram": "ecc_errors/aggregate/dram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.device_memory": "ecc_errors/aggregate/dram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.total": "ecc_errors/aggregate/dram_uncorrectable",
    "gpu_recovery_action": "gpu_recovery_action",
    "reset_status.reset_required": "gpu_reset_status/reset_required",
    "remapped_rows.correctable": "remapped_rows/correctable_error",
    "remapped_rows.uncorrectable": "remapped_rows/uncorrectable_error",
    "remapped_rows.pending": "remapped_rows/pending",
    "remapped_rows.failure": "remapped_rows/remapping_failure_occurred",
    "retired_pages.pending": "retired_pages/pending_retirement",
    "retired_pages.single_bit_ecc.count": "retired_pages/single_bit_ecc",
    "retired_pages.sbe": "retired_pages/single_bit_ecc",
    "retired_pages.double_bit.count": "retired_pages/double_bit_ecc",
    "retired_pages.dbe": "retired_pages/double_bit_ecc",
    "fabric.state": "fabric/state",
    "fabric.status": "fabric/status",
    "temperature.gpu": "temperature/gpu_temp",
    "power.draw": "power_draw",
    "power.draw.instant": "power_draw",
}
for _reason in ("hw_thermal_slowdown", "sw_thermal_slowdown"):
    for _prefix in ("clocks_event_reasons", "clocks_throttle_reasons"):
        _COLUMNS[f"{_prefix}.{_reason}"] = f"{_prefix}/{_reason}"


def parse_table(text: str) -> StateLog | None:
    """The plain table, None when there is none."""
    gpus: list[GpuFields] = []
    rows = 0
    for line in text.splitlines():
        cells = line.strip().strip("|").split("|") if line.strip().startswith("|") else []
        if len(cells) != _ROW_CELLS:
            rows = 0
            continue
        head, place = _HEAD.match(cells[0]), _BUS.match(cells[1])
        if head and place:
            gpus.append(_head_row(head, place, cells[2].strip()))
            rows = 1
        elif rows and gpus:
            rows += 1
            _next_row(gpus[-1].fields, cells, rows)
    if not gpus:
        return None
    return StateLog(tuple(gpus), truncated=not text.rstrip().endswith("+"))


def _head_row(head: re.Match[str], place: re.Match[str], ecc: str) -> GpuFields:
    fields = {"persistence_mode": _ON.get(head[3].lower(), head[3])}
    if ecc.lower() == "off":
        fields["ecc_mode/current"], ecc = "Disabled", "N/A"
    # All kinds of memory together.
    fields["ecc_errors/volatile/dram_uncorrectable"] = ecc
    return GpuFields(bus_id(place[1]), fields, index=head[1], lead=head[1])


def _next_row(fields: dict[str, str], cells: list[str], row: int) -> None:
    """The second row has the readings, the third whether the GPU is split."""
    if row == 2 and (found := _READINGS.match(cells[0])):  # noqa: PLR2004 - the layout's row
        fields["temperature/gpu_temp"] = found[2]
        fields["power_draw"] = found[4]
    elif row == 3 and cells[2].strip():  # noqa: PLR2004 - the layout's row
        fields["mig_mode/current"] = cells[2].strip()


def parse_csv(text: str) -> StateLog | None:
    """The rows of a query, with their head or without, None when it is no such thing."""
    # The tool quotes nothing, and no row is that long.
    rows = [
        [cell.strip() for cell in line[:_LONGEST_ROW].split(",")]
        for line in text.splitlines()
        if line.strip(" ,\t")
    ]
    if not rows:
        return None
    names = _head(rows[0])
    if names is not None:
        # Sentences of the tool may stand between the rows.
        body = [row for row in rows[1:] if len(row) == len(names)]
        strays = len(rows) - 1 - len(body)
    else:
        names, body = _guessed(rows)
        strays = len(rows) - len(body)
    if names is None or not body:
        return None
    gpus = tuple(_gpu(dict(zip(names, row, strict=True))) for row in body)
    doubts = (("incomplete", f"{strays} lines are no rows"),) if strays else ()
    return StateLog(gpus, doubts=doubts)


def _head(row: list[str]) -> list[str] | None:
    """The columns a head names, None when it is no head."""
    named = [cell.split(" [")[0].lower() for cell in row]
    if not all(_NAMED.fullmatch(cell.lower()) for cell in row):
        return None
    return named if any(name in _COLUMNS for name in named) else None


def _guessed(rows: list[list[str]]) -> tuple[list[str] | None, list[list[str]]]:
    """The columns of rows without a head: a GPU's name first, a recovery action last."""
    body = [row for row in rows if len(row) > 1 and _place(row[0]) and is_action(row[-1])]
    widths = {len(row) for row in body}
    if len(widths) != 1:
        return None, []
    width = widths.pop()
    firsts = {_place(row[0]) for row in body}
    if len(firsts) != 1:
        return None, []
    unknown = [f"column_{n}" for n in range(1, width - 1)]
    return [firsts.pop() or "", *unknown, "gpu_recovery_action"], body


def _place(cell: str) -> str | None:
    if cell.isdecimal():
        return "index"
    if bus_id(cell):
        return "pci.bus_id"
    return "uuid" if cell.upper().startswith("GPU-") else None


def _gpu(row: dict[str, str]) -> GpuFields:
    fields: dict[str, str] = {}
    for name, value in row.items():
        fields.setdefault(_COLUMNS.get(name, f"other/{name}"), value)
    uuid = fields.get("uuid", "")
    index = fields.pop("index", None) or (uuid or None)
    return GpuFields(bus_id(fields.pop("bus_id", "")), fields, index=index)
