"""nccl-tests: what a run means, from its rows and footers, its exit status and NCCL's words.

A wrong value fails at once, whatever else is there. A bandwidth is the best of a run, never its
average; it is judged only against a floor, only when the run ended, only with two ranks or more.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers import nccl_answers, nccl_json
from sickbay.readers.bandwidth import below_floor
from sickbay.readers.conclusion import conclude, contradiction, tool_finding
from sickbay.readers.launch_labels import unlabelled
from sickbay.readers.nccl_rows import Run, runs

TOOL = "nccl-tests"
FLOOR = "nccl_busbw_gbps"
"""Key of the class's floor, GB/s; `nccl_<collective>_busbw_gbps` goes before it."""
JUDGED_FROM_BYTES = 64 * 1024**2
"""Below this size latency rules: a low bandwidth there says nothing (our choice)."""
SKIPPED = "verification_skipped"

_SIGN = re.compile(
    r"Out of bounds values\s*:|Avg bus bandwidth\s*:|^#?\s*nThreads? \d|Test NCCL failure"
    r"|Collective test starting|out-of-place\s+in-place|NCCL (?:INFO|WARN) |mpirun detected"
    r"|\"average_bus_bandwidth\"|Test CUDA failure|^#?\s*Rank\s+\d+\s.*Pid\s+\d+ on",
    re.MULTILINE,
)
_TWO_RANKS = 2
# A bus bandwidth of nought beside an algorithm bandwidth above this (GB/s) is by definition.
_MOVED_GBPS = 1.0
_WHOLE_RANKS = 0.2


def recognises(text: str) -> bool:
    """Whether a text looks like an output of nccl-tests or of a launcher that failed on it."""
    return bool(_SIGN.search(text))


def read(
    text: str,
    *,
    exit_code: int | None,
    floors: Mapping[str, float] | None = None,
    ranks: int | None = None,
    gpus_per_host: int | None = None,
    network: str | None = None,
) -> Reading:
    """What one output of nccl-tests, text or `-J` document, means.

    Args:
        text: what was printed or written.
        exit_code: the exit status of the test or its launcher, None when it is not known.
        floors: bandwidths of the class in GB/s by key (`FLOOR`); absent ones are not judged.
        ranks: ranks the run was started with, None when nobody says.
        gpus_per_host: GPUs every host of the run should bring, None when nobody says.
        network: the network NCCL must have used (`IB`), None when any will do.
    """
    documents, truncated = nccl_json.documents(text)
    lines = unlabelled(text)
    found = [nccl_json.run_of(d) for d in documents]
    found += runs(text) if not documents and not truncated else []
    findings = nccl_answers.of_lines([e for d in documents for e in nccl_json.errors_of(d)] + lines)
    if truncated:
        findings.append(tool_finding("truncated", "the document does not end"))
    findings += _not_run(found, lines, findings)
    for run in found:
        unlike = list(_unlike_what_was_asked(run, ranks, gpus_per_host))
        findings += unlike
        findings += _of_run(run, {} if unlike else floors or {}, exit_code)
    used = nccl_answers.network_used(text)
    findings = _with_network(findings, used=used, wanted=network)
    findings += contradiction(exit_code, findings)
    wrong = any(f.reason == "out_of_bounds" for f in findings)
    return conclude(
        TOOL,
        text,
        findings,
        passed=_said(found, checked=not any(f.reason == SKIPPED for f in findings)),
        remarks=_remarks(found),
        measurements=[m for run in found for m in _measurements(run, bounds_only=wrong)],
    )


def _not_run(
    found: Sequence[Run], lines: Sequence[str], known: Sequence[Finding]
) -> Iterator[Finding]:
    """Why there is no result, when there is none: in the words of the launcher or of an error."""
    if any(run.rows or run.bounds for run in found):
        return
    why = nccl_answers.launcher_complaint(lines) or (known[0].detail if known else "")
    if not why and not found:
        why = "no run of nccl-tests is in the output"
    if why:
        yield tool_finding("did_not_run", why)


def _of_run(run: Run, floors: Mapping[str, float], exit_code: int | None) -> Iterator[Finding]:
    corrupt = _corruption(run)
    if corrupt:
        yield corrupt
        return
    whole = run.bounds_word == "OK" and run.has_average
    if run.announced and not run.concluded:
        whole = False
    if run.cut and exit_code is None:
        whole = False
    if not whole:
        yield tool_finding("incomplete", "the run has no end: a crash, a hang or a cut text")
    alone = _ranks_of(run) == 1
    if alone:
        yield tool_finding("single_rank", "one rank alone: bus bandwidth is nought by definition")
    elif whole and not run.rows:
        yield tool_finding("not_measured", "no row of results is in the output")
    if not alone:
        yield from _unmeasured(run, floors)
    if run.average_word == "FAILED":
        kind = FindingKind.TOOL if alone else FindingKind.HARDWARE
        yield Finding(
            None,
            "min_bandwidth_failed",
            Severity.WARNING if alone else Severity.MAJOR,
            kind,
            category=Category.PERFORMANCE,
            detail="the average is below what the test was told to demand",
        )
    if whole and not alone:
        yield from _floor(run, floors)


def _corruption(run: Run) -> Finding | None:
    in_rows = [b.wrong for r in run.rows for _, b in r.blocks() if b.wrong and b.wrong >= 1]
    if not run.bounds and run.bounds_word != "FAILED" and not in_rows:
        return None
    count = run.bounds if run.bounds is not None else sum(in_rows)
    hosts = {host for _, _, host in run.devices}
    category = Category.FABRIC if len(hosts) > 1 else Category.INTERCONNECT
    if _ranks_of(run) == 1:
        category = Category.COMPUTE
    return Finding(
        None,
        "out_of_bounds",
        Severity.CRITICAL,
        FindingKind.HARDWARE,
        category=category,
        detail=f"{count:g} values are wrong: data was corrupted",
    )


def _unmeasured(run: Run, floors: Mapping[str, float]) -> Iterator[Finding]:
    blocks = [(place, block) for row in run.rows for place, block in row.blocks()]
    if any(b.busbw is None or (b.busbw == 0 and (b.algbw or 0) > _MOVED_GBPS) for _, b in blocks):
        yield tool_finding("not_measured", "a bandwidth is no number")
    unchecked = [place for place, block in blocks if block.wrong is None]
    if unchecked and not _has_no_in_place(run, unchecked):
        skipped = tool_finding(SKIPPED, f"{len(unchecked)} results were not checked")
        # A run that was to prove a bandwidth and was told to check no value proves what it can.
        asked = len(unchecked) == len(blocks) and _floor_of(run, floors) is not None
        yield replace(skipped, severity=Severity.INFO) if asked else skipped


def _has_no_in_place(run: Run, unchecked: Sequence[str]) -> bool:
    """Whether only in-place results are unchecked, in a collective that cannot run in place."""
    return all(p == "in" for p in unchecked) and all(r.redop in {None, "none"} for r in run.rows)


def _floor(run: Run, floors: Mapping[str, float]) -> Iterator[Finding]:
    floor, peak = _floor_of(run, floors), _peak(run)
    if floor is None or peak is None or peak >= floor:
        return
    largest = max(row.size_bytes for row in run.rows)
    if largest < JUDGED_FROM_BYTES:
        yield tool_finding("sizes_too_small", f"the largest message is {largest} bytes")
    else:
        yield below_floor(None, what="best bus bandwidth", value=peak, floor=floor, unit="GB/s")


def _floor_of(run: Run, floors: Mapping[str, float]) -> float | None:
    return floors.get(f"nccl_{run.collective}_busbw_gbps", floors.get(FLOOR))


def _unlike_what_was_asked(
    run: Run, ranks: int | None, gpus_per_host: int | None
) -> Iterator[Finding]:
    seen = len({(group, rank) for group, rank, _ in run.devices}) or _ranks_of(run)
    if ranks is not None and seen is not None and seen != ranks:
        yield tool_finding("rank_count_mismatch", f"{seen} ranks ran, {ranks} were wanted")
    if gpus_per_host is None:
        return
    for host, count in Counter(host for _, _, host in run.devices).items():
        if count != gpus_per_host:
            detail = f"{host} brings {count} GPUs, {gpus_per_host} are expected"
            yield tool_finding("gpu_count_mismatch", detail)


def _with_network(
    findings: list[Finding], *, used: str | None, wanted: str | None
) -> list[Finding]:
    """The findings, without blame for a bandwidth that went over the wrong network."""
    if wanted is None or used is None or used.lower() == wanted.lower():
        return findings
    said = Finding(
        None,
        "network_not_as_wanted",
        Severity.WARNING,
        FindingKind.CONFIGURATION,
        category=Category.FABRIC,
        detail=f"NCCL used {used}, {wanted} is wanted",
    )
    cleared = [
        replace(f, kind=FindingKind.TOOL, severity=Severity.WARNING)
        if f.reason in {"bandwidth_below_floor", "min_bandwidth_failed"}
        else f
        for f in findings
    ]
    untold = tool_finding("not_measured", f"the wanted network {wanted} was not used")
    return [said, *cleared, untold]


def _ranks_of(run: Run) -> int | None:
    """Ranks that worked together; None when the output does not say.

    The ratio of bus and algorithm bandwidth of an all-reduce is 2(n-1)/n; above one it can be no
    other collective.
    """
    moved = [b for r in run.rows for _, b in r.blocks() if (b.algbw or 0) > _MOVED_GBPS]
    if moved and all(b.busbw == 0 for b in moved):
        return 1
    if run.devices:
        groups = Counter(group for group, _ in {(g, rank) for g, rank, _ in run.devices})
        return min(groups.values())
    if run.nranks:
        return run.nranks
    ratios = [b.busbw / b.algbw for b in moved if b.busbw and b.algbw]
    best = max(ratios, default=0.0)
    if 1 < best < _TWO_RANKS:
        ranks = 2 / (2 - best)
        return round(ranks) if abs(ranks - round(ranks)) < _WHOLE_RANKS else None
    return None


def _peak(run: Run) -> float | None:
    return max((b.busbw for r in run.rows for _, b in r.blocks() if b.busbw), default=None)


def _measurements(run: Run, *, bounds_only: bool) -> Iterator[Measurement]:
    checked = any(b.wrong is not None for r in run.rows for _, b in r.blocks())
    if run.bounds is not None and (checked or run.bounds or not run.rows):
        yield Measurement("out_of_bounds", None, float(run.bounds), "values")
    ranks = _ranks_of(run)
    if ranks is not None:
        yield Measurement("ranks", None, float(ranks), "ranks")
    if bounds_only or ranks == 1:
        return
    for row in run.rows:
        for placement, block in row.blocks():
            if block.busbw is not None:
                yield Measurement(
                    "busbw_gbps",
                    None,
                    block.busbw,
                    "GB/s",
                    size_bytes=row.size_bytes,
                    placement=placement,
                )
    peak = _peak(run)
    if peak is not None:
        yield Measurement("busbw_gbps_peak", None, peak, "GB/s")


def _said(found: Sequence[Run], *, checked: bool) -> str | None:
    peaks = [peak for peak in map(_peak, found) if peak is not None]
    if not peaks:
        return None
    data = "0 wrong values" if checked else "no value was checked, this proves bandwidth only"
    return f"{data}, best bus bandwidth {max(peaks):g} GB/s"


def _remarks(found: Sequence[Run]) -> list[Finding]:
    if len(found) < _TWO_RANKS:
        return []
    detail = f"{len(found)} runs are in the output; each is judged by itself"
    return [
        Finding(None, "several_runs", Severity.INFO, FindingKind.TOOL, detail=detail),
    ]
