"""How findings become one reading, the same for every tool.

A finding about hardware fails; anything the tool could not do makes it inconclusive; configuration
and notes about a job change no verdict. Without a positive statement there is no pass.
"""

from collections.abc import Sequence
from dataclasses import replace

from sickbay.domain.node import Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading, Verdict
from sickbay.readers.documents import digest

_DETAIL_CHARS = 300


def tool_finding(reason: str, detail: str, part: str | None = None) -> Finding:
    """Something that kept the tool from saying anything; never about the hardware."""
    return Finding(
        part, reason, Severity.WARNING, FindingKind.TOOL, detail=detail.strip()[:_DETAIL_CHARS]
    )


def contradiction(exit_code: int | None, findings: Sequence[Finding]) -> list[Finding]:
    """What a failed exit status adds, when no finding of the output tells why it failed."""
    if exit_code in {None, 0}:
        return []
    for finding in findings:
        if finding.kind is FindingKind.HARDWARE:
            return []
        if finding.kind is FindingKind.TOOL and finding.severity is not Severity.INFO:
            return []
    return [tool_finding("exit_code_contradicts_document", f"exit status {exit_code}")]


def conclude(
    tool: str,
    text: str,
    findings: Sequence[Finding],
    *,
    passed: str | None,
    remarks: Sequence[Finding] = (),
    measurements: Sequence[Measurement] = (),
) -> Reading:
    """The reading of one output.

    Args:
        tool: which tool's output it is.
        text: the raw output, for its digest.
        findings: what was found, each once.
        passed: what passed, in words; None when nothing positive was said.
        remarks: findings worth keeping that change no verdict.
        measurements: the numbers in the output.
    """
    return conclude_digested(
        tool,
        digest(text),
        findings,
        passed=passed,
        remarks=remarks,
        measurements=measurements,
    )


def conclude_digested(
    tool: str,
    text_digest: str,
    findings: Sequence[Finding],
    *,
    passed: str | None,
    remarks: Sequence[Finding] = (),
    measurements: Sequence[Measurement] = (),
) -> Reading:
    """As `conclude`, for a text that was read piece by piece: with its SHA-256."""
    once = _attributed(tuple(dict.fromkeys(findings)))
    verdict, why, worst = _verdict(once, passed)
    return Reading(
        tool,
        verdict,
        why,
        category=worst.category if worst else None,
        findings=(*once, *remarks),
        measurements=tuple(measurements),
        digest=text_digest,
    )


def first_line(text: str) -> str:
    """The first line that says something, for people."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    return line[:_DETAIL_CHARS]


def _attributed(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings without blame for what follows from the loss of another GPU.

    When one GPU of a node is lost the driver asks all of them for a reboot.
    """
    lost = {f.part for f in findings if f.reason == "gpu_lost"}
    if not lost:
        return findings
    return tuple(
        replace(f, kind=FindingKind.TOOL, severity=Severity.INFO, treatment=None, category=None)
        if f.reason == "recovery_action_reboot" and f.part not in lost
        else f
        for f in findings
    )


def _verdict(
    findings: Sequence[Finding], passed: str | None
) -> tuple[Verdict, str, Finding | None]:
    hardware = [f for f in findings if f.kind is FindingKind.HARDWARE]
    if hardware:
        worst = max(hardware, key=lambda f: f.severity.rank)
        return Verdict.FAIL, _sentence(worst), worst
    unclear = [
        f for f in findings if f.kind is FindingKind.TOOL and f.severity is not Severity.INFO
    ]
    if unclear:
        return Verdict.INCONCLUSIVE, _sentence(unclear[0]), unclear[0]
    if passed is None:
        why = _sentence(findings[0]) if findings else "nothing was said"
        return Verdict.INCONCLUSIVE, why, findings[0] if findings else None
    return Verdict.PASS, passed, None


def _sentence(finding: Finding) -> str:
    where = f" on {finding.part}" if finding.part else ""
    return f"{finding.reason}{where}: {finding.detail}"
