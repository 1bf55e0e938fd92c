"""C47: what is large travels by reference; a store that is down is noticed and never waited for."""

from dataclasses import replace

import pytest

from sickbay.domain.node import Category, Severity, Treatment
from sickbay.domain.reading import Finding, FindingKind, Reading, Verdict
from sickbay.ports import CheckOutput
from tests.workflows.conftest import POLICY

LIMIT = 256 * 1024
DIAGNOSTICS = b"d" * (4 * 1024 * 1024 + 170)
BUG_REPORT = b"r" * (30 * 1024 * 1024)


def output(raw, *, lines):
    """A failed check with one finding a log line, as long as the tool likes to talk."""
    found = tuple(
        Finding(
            part=None,
            reason="xid_79",
            severity=Severity.MAJOR if i else Severity.CRITICAL,
            kind=FindingKind.HARDWARE,
            treatment=Treatment.RESET,
            category=Category.COMPUTE,
        )
        for i in range(lines)
    )
    return CheckOutput(Reading("dcgm_diag", Verdict.FAIL, "x" * 10**6, findings=found), raw)


def payload_sizes(history):
    """The bytes of every payload of every event."""
    found = []

    def walk(message):
        for field, value in message.ListFields():
            if field.name == "payloads":
                found.extend(len(p.data) for p in value)
            elif field.type == field.TYPE_MESSAGE:
                many = value if field.is_repeated else [value]
                for one in many.values() if hasattr(many, "values") else many:
                    if hasattr(one, "ListFields"):
                        walk(one)

    for event in history.events:
        walk(event)
    return found


@pytest.mark.parametrize("raw", [DIAGNOSTICS, BUG_REPORT], ids=["4 MiB", "30 MB"])
async def test_c47_large_output_goes_by_reference_and_no_payload_is_large(start, raw):
    async with start(count=1) as loop:
        loop.fleet.script("checks.dcgm_diag", output(raw, lines=20_000), node="n001")
        handle = await loop.report("n001", treatment=Treatment.RESET)
        assert (await loop.ended()).ending == "returned"
        assert raw in loop.evidence.stored.values()
        step = next(s for s in loop.records.steps if s.stage == "diagnose")
        stored = [len(loop.evidence.stored[digest]) for digest in step.evidence]
        assert len(raw) in stored
        sizes = payload_sizes(await handle.fetch_history())
        assert len(sizes) > 20
        assert max(sizes) < LIMIT


async def test_c47_a_store_that_is_down_is_tried_a_few_times_then_paged_and_the_node_stays_out(
    start,
):
    policy = replace(POLICY, inconclusive_limit=2)
    async with start(count=1, policy=policy) as loop:
        loop.evidence.down = OSError("no space left on device")
        await loop.broken("n001", Treatment.RESET)
        await loop.until_stage("needs_human")
        pages = await loop.until("a page", lambda: loop.pager.about("n001"))
        assert pages
        tried = loop.evidence.refused
        assert 0 < tried < 100
        assert not loop.fleet["n001"].gate_open
        assert loop.fleet.done("n001") == []
        assert any("could not be stored" in s.detail for s in loop.records.steps)
        loop.evidence.down = None
        await loop.order("resume")
        assert (await loop.ended()).ending == "returned"


async def test_c47_storing_that_succeeds_at_the_second_attempt_is_no_trouble(start):
    async with start(count=1) as loop:
        put, failures = loop.evidence.put, [OSError("busy")]

        async def once_busy(data, *, kind):
            if failures:
                raise failures.pop()
            return await put(data, kind=kind)

        loop.evidence.put = once_busy
        await loop.broken("n001", Treatment.RESET)
        assert (await loop.ended()).ending == "returned"
        assert "diagnose confirmed" in await loop.story()
