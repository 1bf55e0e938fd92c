"""The layouts of a `dcgmi diag` document, 3.x, 4.x and NVVS's own, as one list of rows.

A test is named as DCGM 4 names it; everything under Deployment is one test, `software`. Whatever a
layout leaves out (summaries, ids, information) is simply not there.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sickbay.domain.reading import Measurement
from sickbay.readers.dcgm_meaning import SEVERITIES, SOFTWARE_TEST

ROOT_4 = "DCGM Diagnostic"
ROOT_3 = "DCGM GPU Diagnostic"
_ALIASES = {"gpu_memory": "memory", "eud_test": "eud", "cpu_eud_test": "cpu_eud"}
_STATUSES = {"pass": "pass", "fail": "fail", "warn": "fail", "skip": "skip", "not run": "skip"}

# Name and unit of what the information sentences carry.
_NUMBER = r"\s*([0-9]+(?:\.[0-9]+)?)"
_MEASURES: tuple[tuple[str, str, str], ...] = (
    ("d2h_gbps", "GB/s", rf"GPU to Host bandwidth:{_NUMBER} GB/s"),
    ("h2d_gbps", "GB/s", rf"Host to GPU bandwidth:{_NUMBER} GB/s"),
    ("bidirectional_gbps", "GB/s", rf"bidirectional bandwidth:{_NUMBER} GB/s"),
    ("gflops", "GFLOPS", rf"calculated at approximately{_NUMBER} gigaflops"),
    ("stress_level", "GFLOPS", rf"relative stress level:?{_NUMBER}"),
    ("stress_level", "GFLOPS", rf"Max stress level of{_NUMBER}"),
    ("power_w", "W", rf"power average:{_NUMBER} W"),
    ("temp_c", "C", rf"temperature average:{_NUMBER} C"),
)
_MEASURE_PATTERNS = tuple(
    (name, unit, re.compile(rf"(?:GPU (\d+) )?(?:GPU \d+ )?{p}")) for name, unit, p in _MEASURES
)


@dataclass(frozen=True)
class Warned:
    """One warning: its sentence, DCGM's id and DCGM's word for its severity when told."""

    text: str
    error_id: int | None = None
    severity: str | None = None


@dataclass(frozen=True)
class Row:
    """One entity's result of one test. `status` is pass, fail, skip or unknown."""

    test: str
    part: str | None
    status: str
    warnings: tuple[Warned, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnostic:
    """One run: its rows, the error that ended it, and the serial of each entity it lists."""

    rows: tuple[Row, ...]
    runtime_error: str = ""
    serials: Mapping[str, str] | None = None


def diagnostics(document: Mapping[str, Any]) -> list[Diagnostic]:
    """The runs in a document: one, several with `--iterations`, none in something else."""
    iterations = document.get("iterations")
    if isinstance(iterations, list):
        return [run for one in _dicts(iterations) for run in diagnostics(one)]
    for key in (ROOT_4, ROOT_3):
        root = document.get(key)
        if isinstance(root, dict) and (root.get("test_categories") or root.get("runtime_error")):
            rows = tuple(_rows(root, numbered=key == ROOT_4))
            error = str(root.get("runtime_error") or "")
            return [Diagnostic(rows, error, _serials(document, root))]
    return []


def measurements(rows: tuple[Row, ...]) -> tuple[Measurement, ...]:
    """The numbers in the information and warning sentences, each once per part."""
    found: dict[tuple[str, str | None], Measurement] = {}
    for row in rows:
        for text in (*row.infos, *(w.text for w in row.warnings)):
            for name, unit, pattern in _MEASURE_PATTERNS:
                for match in pattern.finditer(text):
                    part = match[1] or row.part
                    value = float(match[2])
                    found.setdefault((name, part), Measurement(name, part, value, unit))
    return tuple(found.values())


def _rows(root: Mapping[str, Any], *, numbered: bool) -> Iterator[Row]:
    for category in _dicts(root.get("test_categories")):
        deployment = str(category.get("category", "")).strip().lower() == "deployment"
        for test in _dicts(category.get("tests")):
            name = SOFTWARE_TEST if deployment else test_name(str(test.get("name", "unnamed")))
            yield from _test_rows(name, test, numbered=numbered)


def test_name(printed: str) -> str:
    """A test's name as DCGM 4 writes it."""
    name = "_".join(re.findall(r"[a-z0-9]+", printed.lower())) or "unnamed"
    return _ALIASES.get(name, name)


def _test_rows(name: str, test: Mapping[str, Any], *, numbered: bool) -> Iterator[Row]:
    rows = [
        row
        for result in _dicts(test.get("results"))
        for row in _result_rows(name, result, numbered=numbered)
    ]
    yield from rows
    summary = test.get("test_summary")
    if not isinstance(summary, dict):
        return
    # Newer releases copy the entities' warnings here: counted once, so only when no entity has it.
    status = _status(summary)
    if status not in {row.status for row in rows}:
        yield Row(name, None, status, tuple(_warnings(summary, numbered=numbered)))


def _result_rows(name: str, result: Mapping[str, Any], *, numbered: bool) -> Iterator[Row]:
    warnings = tuple(_warnings(result, numbered=numbered))
    infos = tuple(_texts(result.get("info")))
    for part in _parts(result):
        yield Row(name, part, _status(result), warnings, infos)


def _status(result: Mapping[str, Any]) -> str:
    return _STATUSES.get(str(result.get("status", "")).strip().lower(), "unknown")


def _parts(result: Mapping[str, Any]) -> list[str | None]:
    """4.x one entity, 3.x one or a comma list; none for the whole node."""
    if "entity_id" in result:
        group = str(result.get("entity_group", "GPU")).strip().lower()
        ident = str(result["entity_id"])
        return [ident if group == "gpu" else f"{group}{ident}"]
    listed = result.get("gpu_ids", result.get("gpu_id"))
    if listed is None:
        return [None]
    return [part.strip() for part in str(listed).split(",") if part.strip()] or [None]


def _warnings(result: Mapping[str, Any], *, numbered: bool) -> Iterator[Warned]:
    found = result.get("warnings")
    for item in found if isinstance(found, list) else [found] if found else []:
        if not isinstance(item, dict):
            yield Warned(str(item))
            continue
        number, severity = item.get("error_id"), item.get("error_severity")
        yield Warned(
            str(item.get("warning", "")),
            number if isinstance(number, int) else None,
            SEVERITIES.get(severity) if numbered and isinstance(severity, int) else None,
        )


def _serials(document: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, str]:
    """Serial per GPU id; DCGM's ids are its own, the serial is the part's."""
    listed = root.get("GPU Device Serials")
    if isinstance(listed, dict):
        return {str(k): str(v) for k, v in listed.items()}
    return {
        str(entity.get("entity_id")): str(entity.get("serial_num"))
        for group in _dicts(document.get("entity_groups"))
        if str(group.get("entity_group", "")).lower() == "gpu"
        for entity in _dicts(group.get("entities"))
        if entity.get("serial_num")
    }


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else [str(value)] if value else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
