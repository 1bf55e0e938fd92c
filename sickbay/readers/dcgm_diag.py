"""`dcgmi diag`: what a run means, from its document, its exit status and its text.

Fail needs a finding about hardware. Pass needs one test that ran and passed, every wanted test
among them on every expected GPU, and nothing that contradicts. Everything else is inconclusive.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sickbay.domain.node import Severity
from sickbay.domain.reading import Finding, FindingKind, Reading
from sickbay.readers import dcgm_answers
from sickbay.readers.conclusion import conclude, tool_finding
from sickbay.readers.dcgm_layouts import Diagnostic, Row, diagnostics, measurements
from sickbay.readers.dcgm_meaning import NOT_RUN_REASONS, SOFTWARE_TEST, finding_of
from sickbay.readers.dcgm_records import findings_of_records
from sickbay.readers.documents import json_documents, outside_documents

TOOL = "dcgmi-diag"
CONTRADICTION = "exit_code_contradicts_document"
_SIGNS = re.compile(
    r'"DCGM (?:GPU )?Diagnostic"|^\| Diagnostic +\||NVIDIA Validation Suite'
    r"|connection to the specified host|start an embedded host engine"
    r"|incompatible with the diagnostic|complete diagnostic for group|[Dd]iagnostic can only be"
    r"|DCGM diagnostic|results of the nvbandwidth test|DCGM_FR_|^\[\[ DCGM \]\]"
    r"|^\| (?:PCIe|GPU Memory|Diagnostic|Targeted \w+|\w+) +\| (?:Pass|Fail|Skip|Warn)\b",
    re.MULTILINE,
)


def read(
    text: str,
    *,
    exit_code: int | None,
    wanted: Sequence[str] = (),
    gpus: int | None = None,
    bus_ids: Mapping[str, str] | None = None,
    links_per_gpu: int | None = None,
) -> Reading:
    """What the output of `dcgmi diag` means.

    Args:
        text: standard output and error together.
        exit_code: the exit status, None when it is not known.
        wanted: names (of DCGM 4) of the tests that were asked for; each must have passed.
        gpus: how many GPUs the node has; a hardware test must have tested all of them.
        bus_ids: bus id per serial, to name parts better than by DCGM's own ids.
        links_per_gpu: NVLinks the node class has per GPU, None when nobody says.
    """
    asked = _Asked(exit_code, tuple(wanted), gpus, bus_ids or {}, links_per_gpu)
    documents, truncated = json_documents(text)
    by_document = [runs for d in documents if (runs := diagnostics(d))]
    if not by_document:
        return _from_text(text, asked, documents, truncated=truncated)
    if truncated:
        return _cut_off(text, exit_code)
    if len(by_document) > 1:
        extra = [tool_finding("two_documents", f"{len(by_document)} documents in one output")]
        return conclude(TOOL, text, extra, passed=None)
    return _judge(text, by_document[0], asked)


@dataclass(frozen=True)
class _Asked:
    """What the run was asked for, and on what."""

    exit_code: int | None
    wanted: tuple[str, ...]
    gpus: int | None
    bus_ids: Mapping[str, str]
    links_per_gpu: int | None


def recognises(text: str) -> bool:
    """Whether a text is the output of a diagnostic run."""
    return bool(_SIGNS.search(text))


def _judge(text: str, runs: Sequence[Diagnostic], asked: _Asked) -> Reading:
    rows = tuple(_renamed(row, run, asked.bus_ids) for run in runs for row in run.rows)
    judged = tuple(row for row in rows if row.test != dcgm_answers.INFORMATION)
    findings = [_fitted(f, asked.links_per_gpu) for row in judged for f in _findings(row)]
    findings += dcgm_answers.of_text(outside_documents(text))
    findings += [tool_finding("runtime_error", r.runtime_error) for r in runs if r.runtime_error]
    findings += _not_tested(judged, asked.wanted, asked.gpus)
    findings += _by_exit(asked.exit_code, judged, findings)
    passed = {row.test for row in judged if row.status == "pass"}
    clear = bool(passed - {SOFTWARE_TEST}) or (bool(passed) and not _failed(judged))
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"passed: {', '.join(sorted(passed))}" if clear else None,
        remarks=_skips(judged, asked.wanted),
        measurements=measurements(rows),
    )


def _failed(rows: Sequence[Row]) -> bool:
    return any(row.status in {"fail", "unknown"} for row in rows)


def _findings(row: Row) -> list[Finding]:
    """Findings of one row; a hardware test that fails without a word still fails."""
    found = [
        finding_of(w.text, test=row.test, part=row.part, error_id=w.error_id, severity=w.severity)
        for w in row.warnings
    ]
    if row.status == "skip":
        return [f for f in found if f.kind is FindingKind.CONFIGURATION]
    if row.status == "pass":
        # Said beside a pass: worth keeping, nothing failed; unless it says that nothing ran.
        return [
            f
            if f.reason in NOT_RUN_REASONS
            else replace(f, kind=FindingKind.TOOL, severity=Severity.INFO)
            for f in found
        ]
    if found:
        only_configured = all(f.kind is FindingKind.CONFIGURATION for f in found)
        if only_configured and row.test != SOFTWARE_TEST:
            found.append(tool_finding(f"{row.test}_not_run", "configuration only", row.part))
        return found
    if row.status == "fail" and row.test != SOFTWARE_TEST:
        return [finding_of("failed without a word", test=row.test, part=row.part)]
    return [tool_finding("status_unclear", f"{row.test}: {row.status} without a word", row.part)]


def _renamed(row: Row, run: Diagnostic, bus_ids: Mapping[str, str]) -> Row:
    """The row with the part's bus id, when the document ties its id to a known serial."""
    serial = (run.serials or {}).get(row.part or "", "")
    return replace(row, part=bus_ids[serial]) if serial in bus_ids else row


def _not_tested(rows: Sequence[Row], wanted: Sequence[str], gpus: int | None) -> list[Finding]:
    """Wanted tests that did not run at all, or not on every GPU."""
    found = []
    shown = dict.fromkeys(row.test for row in rows if row.test != SOFTWARE_TEST)
    done = {row.test for row in rows if row.status != "skip"}
    if shown and not (done & shown.keys()):
        found.append(tool_finding("did_not_run", f"skipped: {', '.join(shown)}"))
    for test in wanted or [test for test in shown if test in done]:
        ran = [row for row in rows if row.test == test and row.status in {"pass", "fail"}]
        tested = {row.part for row in ran if row.part is not None}
        if not ran:
            found.append(tool_finding(f"{test}_not_run", "asked for, but it has no result"))
        elif gpus is not None and tested and len(tested) < gpus and test != SOFTWARE_TEST:
            detail = f"{test} ran on {len(tested)} of {gpus} GPUs"
            found.append(tool_finding(f"{test}_not_run", detail))
    return found


def _skips(rows: Sequence[Row], wanted: Sequence[str]) -> list[Finding]:
    """Tests that nobody asked for by name and that were skipped: said, but no obstacle."""
    skipped = dict.fromkeys(row.test for row in rows if row.status == "skip")
    return [
        replace(tool_finding(f"{test}_skipped", "skipped"), severity=Severity.INFO)
        for test in skipped
        if test not in wanted
    ]


def _by_exit(
    exit_code: int | None, rows: Sequence[Row], findings: Sequence[Finding]
) -> list[Finding]:
    """What the exit status adds: an error of its own, or a contradiction to the document."""
    own = dcgm_answers.of_exit(exit_code)
    if own is not None:
        return [own]
    failed = any(row.status == "fail" for row in rows)
    hardware = any(f.kind is FindingKind.HARDWARE for f in findings)
    if exit_code == dcgm_answers.EXIT_ERROR and not failed:
        return [tool_finding(CONTRADICTION, "exit status 226, but nothing failed")]
    if exit_code == dcgm_answers.EXIT_ISOLATE and not hardware:
        return [tool_finding(CONTRADICTION, "exit status 205, but no GPU is to be isolated")]
    if exit_code == 0 and failed:
        return [tool_finding(CONTRADICTION, "exit status 0, but a test failed")]
    return []


def _cut_off(text: str, exit_code: int | None) -> Reading:
    """A document without an end: nothing in it is a verdict."""
    own = dcgm_answers.of_exit(exit_code)
    extra = [own] if own is not None and own.kind is FindingKind.TOOL else []
    cut = tool_finding("truncated", "the document has no end")
    return conclude(
        TOOL, text, [cut, *extra, *dcgm_answers.of_text(outside_documents(text))], passed=None
    )


def _from_text(
    text: str, asked: _Asked, documents: Sequence[Mapping[str, Any]], *, truncated: bool
) -> Reading:
    """No document: error sentences, a wrapper's records, an exit status, or the text table."""
    if truncated:
        return _cut_off(text, asked.exit_code)
    rows, whole = dcgm_answers.table_rows(text)
    if rows and whole:
        return _judge(text, [Diagnostic(tuple(_explained(rows)))], asked)
    findings = [] if rows else [*dcgm_answers.of_text(text), *findings_of_records(text, documents)]
    if rows:
        found = [f for row in rows if row.warnings for f in _findings(row)]
        findings = [
            _fitted(_unbelieved(f, asked.links_per_gpu), asked.links_per_gpu) for f in found
        ]
        findings.append(tool_finding("truncated", "the table has no end"))
    own = dcgm_answers.of_exit(asked.exit_code)
    if own is not None and not any(f.reason == own.reason for f in findings):
        findings.append(own)
    if not findings:
        findings = [tool_finding("no_document", "no document in the output")]
    return conclude(TOOL, text, findings, passed=None, measurements=measurements(tuple(rows)))


def _explained(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a whole table, without the verdicts that a row of warnings explains."""
    told = {(row.test, row.part) for row in rows if row.warnings}
    for row in rows:
        of_test = any(test == row.test and None in {part, row.part} for test, part in told)
        if row.warnings or row.status != "fail" or not (of_test or (row.test, row.part) in told):
            yield row


def _fitted(finding: Finding, links_per_gpu: int | None) -> Finding:
    """A link that is down where the class has none says how the node is made, not that it broke."""
    if links_per_gpu != 0 or finding.reason != "nvlink_down":
        return finding
    kind = FindingKind.CONFIGURATION
    return replace(finding, kind=kind, severity=Severity.INFO, treatment=None, category=None)


def _unbelieved(finding: Finding, links_per_gpu: int | None) -> Finding:
    """A link that is down, in a table without its end: also said where none is fitted."""
    if finding.reason == "nvlink_down" and not links_per_gpu:
        return replace(
            finding, kind=FindingKind.TOOL, severity=Severity.WARNING, treatment=None, category=None
        )
    return finding
