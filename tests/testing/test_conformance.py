"""The rules of adapters, kept by the ports in memory and by the adapters of the store."""

from datetime import UTC, datetime

import pytest

from sickbay.adapters.local_pager import LocalPager
from sickbay.adapters.local_tickets import LocalTickets
from sickbay.contracts.steps import Action, Effect, Outcome, Permission, TicketDraft
from sickbay.store.engine import open_store
from sickbay.store.evidence import EvidenceFiles
from sickbay.store.queries import open_tickets, page_rows
from sickbay.store.records import StoreRecords
from sickbay.store.safety import StoreSafety
from sickbay.testing import (
    MemoryEvidence,
    MemoryFleet,
    MemoryPager,
    MemorySafety,
    MemoryScheduler,
    MemoryTickets,
    some_nodes,
)
from sickbay.testing import conformance as rules

T0 = datetime(2026, 3, 1, tzinfo=UTC)
DRAFT = TicketDraft(
    "n001/gpu0/memory", "n001", "train", "rack0", "gpu0", "GPU-1", "S1", "memory", "t", "b", "r1"
)


def rule_of(group):
    return pytest.mark.parametrize("rule", group, ids=lambda rule: rule.__name__)


@pytest.fixture
def fleet():
    return MemoryFleet(some_nodes(2), now=lambda: T0)


@pytest.fixture
async def store(tmp_path):
    opened = await open_store(f"sqlite+aiosqlite:///{tmp_path / 'sickbay.db'}")
    await StoreRecords(opened).sync_inventory(some_nodes(2), at=T0)
    yield opened
    await opened.close()


@rule_of(rules.SCHEDULER_RULES)
async def test_the_scheduler_in_memory(rule, fleet):
    async def start_job(node):
        fleet[node].jobs.append("job7")
        return "job7"

    async def mark_of_another(node, mark):
        fleet.mark(node, mark, reason="by ops")

    await rule(rules.SchedulerBench(MemoryScheduler(fleet), "n001", start_job, mark_of_another))


@rule_of(rules.TICKETS_RULES)
async def test_the_tickets_in_memory(rule, fleet):
    tickets = MemoryTickets(fleet)

    async def lines(ticket):
        return tickets.all[ticket].lines

    async def is_open(ticket):
        return tickets.all[ticket].is_open

    await rule(rules.TicketsBench(tickets, lines, is_open, DRAFT))


@rule_of(rules.TICKETS_RULES)
async def test_the_tickets_of_the_store(rule, store):
    async def found(ticket):
        return next((row for row in await open_tickets(store) if row.id == ticket), None)

    async def lines(ticket):
        row = await found(ticket)
        return list(row.lines) if row else []

    async def is_open(ticket):
        return await found(ticket) is not None

    tickets = LocalTickets(StoreRecords(store), clock=lambda: T0)
    await rule(rules.TicketsBench(tickets, lines, is_open, DRAFT))


@rule_of(rules.PAGER_RULES)
async def test_the_pager_in_memory(rule, fleet):
    pager = MemoryPager(fleet)

    async def delivered():
        return list(pager.delivered)

    await rule(rules.PagerBench(pager, delivered))


@rule_of(rules.PAGER_RULES)
async def test_the_pager_of_the_store(rule, store):
    async def delivered():
        return [row.key for row in await page_rows(store)]

    await rule(rules.PagerBench(LocalPager(StoreRecords(store), clock=lambda: T0), delivered))


@rule_of(rules.EVIDENCE_RULES)
async def test_the_evidence_in_memory(rule):
    evidence = MemoryEvidence()

    async def tamper(digest, data):
        evidence.stored[digest] = data

    await rule(rules.EvidenceBench(evidence, tamper))


@rule_of(rules.EVIDENCE_RULES)
async def test_the_evidence_in_files(rule, tmp_path):
    async def tamper(digest, data):
        (tmp_path / digest[:2] / digest).write_bytes(data)

    await rule(rules.EvidenceBench(EvidenceFiles(tmp_path), tamper))


@rule_of(rules.SAFETY_RULES)
async def test_the_switches_in_memory(rule):
    safety = MemorySafety(mode=Permission.ACT)

    async def stop(pool):
        safety.stop(pool)

    async def go(pool):
        safety.go(pool)

    await rule(rules.SafetyBench(safety, Action.RESET, stop, go))


@rule_of(rules.SAFETY_RULES)
async def test_the_switches_of_the_store(rule, store, tmp_path):
    records = StoreRecords(store)
    safety = StoreSafety(store, modes={"train": {Action.RESET: "act"}}, clock=lambda: T0)

    async def stop(pool):
        await records.set_stop(pool, by="ann", reason="a test", at=T0)

    async def go(pool):
        await records.lift_stop(pool, by="ann", at=T0)

    async def blind():
        await store.close()
        (tmp_path / "sickbay.db").unlink()

    await rule(rules.SafetyBench(safety, Action.RESET, stop, go, blind))


async def test_a_broken_rule_is_named(fleet):
    """A scheduler whose refusals look like successes does not conform."""

    class Forgetful(MemoryScheduler):
        async def open_gate(self, node, *, mark):
            return Effect(Outcome.SUCCEEDED)

    bench = rules.SchedulerBench(Forgetful(fleet), "n001", None, None)
    with pytest.raises(rules.NonConforming, match="open_gate takes the mark away"):
        await rules.closing_twice_is_once(bench)
