"""C49: messages that arrive while a history begins anew have their effect, once and in order."""

import asyncio

import pytest
import pytest_asyncio

from sickbay.contracts.budget import (
    BudgetGrant,
    BudgetSwitch,
    PermitAsk,
    PermitReleased,
    WithholdAsk,
    WithholdEnded,
)
from sickbay.domain.budget_state import BudgetPolicy
from sickbay.domain.node import Severity
from tests.workflows.conftest import POOL, running, small_server, utc_now

# Nothing is granted: what a message did stays to be counted.
CLOSED = BudgetPolicy(allowance=0, cap=0)
NODES = 50
MESSAGES = 1000


def ask(node, number):
    return PermitAsk(
        repair_id=f"{node}.{number}",
        workflow_id=f"node-repair/{node}",
        node=node,
        group=f"g-{node}",
        severity=Severity.MAJOR,
        hard=True,
        reason="hard_fail:xid_79",
        factors={"rack": "rack1"},
        at=utc_now(),
    )


def given_back(node, number):
    return PermitReleased(f"{node}.{number}", at=utc_now())


@pytest_asyncio.fixture
async def rolling(temporal_cli):
    async with (
        small_server(temporal_cli, events=50) as env,
        running(env, count=1, budget=CLOSED) as loop,
    ):
        yield loop


async def runs_of(loop):
    """How many runs the budget's workflow had: counted back along the chain."""
    run = (await loop.budget().describe()).run_id
    count = 0
    while run:
        handle = loop.client.get_workflow_handle(loop.budget().id, run_id=run)
        first = (await handle.fetch_history()).events[0]
        run = first.workflow_execution_started_event_attributes.continued_execution_run_id
        count += 1
    return count


async def a_node_speaks(permits, node, messages):
    """Ask, give back, ask again ...: one after the other, as one repair after another would.

    The last ask of every other node is not given back, but said twice.
    """
    for number in range(messages // 2):
        await permits.ask(POOL, ask(node, number))
        if number + 1 == messages // 2 and is_even(node):
            await permits.ask(POOL, ask(node, number))
        else:
            await permits.release(POOL, given_back(node, number))


def is_even(node):
    return int(node[1:]) % 2 == 0


@pytest.mark.slow
@pytest.mark.timeout(420)
async def test_c49_a_thousand_messages_while_rolling_over_every_fifty_events(rolling):
    nodes = [f"x{i:02d}" for i in range(NODES)]
    each = MESSAGES // NODES
    speaking = [asyncio.create_task(a_node_speaks(rolling.permits, n, each)) for n in nodes]
    frozen = await rolling.permits.freeze(POOL, BudgetSwitch(by="ann", reason="a storm"))
    assert frozen.frozen_by == "ann"
    for _ in range(10):
        await rolling.permits.grant(POOL, BudgetGrant(1, by="ann", reason="one more"))
    await asyncio.gather(*speaking)

    async def settled():
        view = await rolling.permits.status(POOL)
        return set(view.queue) == set(nodes[::2]) and len(view.queue) == NODES // 2

    await rolling.until("the last word of every node stands", settled)
    view = await rolling.permits.status(POOL)
    assert view.frozen_by == "ann"
    assert view.extra == 10
    assert await runs_of(rolling) >= 4
    told = {}
    for row in rolling.records.permits:
        told.setdefault(row.node, []).append((row.event, row.repair_id))
    orders = told.pop("")
    assert len({order for _, order in orders}) == 11
    for node in nodes:
        repairs = [f"{node}.{i}" for i in range(each // 2)]
        expected = [(e, r) for r in repairs for e in ("asked", "released")]
        # Asked again, the same ask: a node that asks to the end is told so once.
        assert told[node] == (expected[:-1] if is_even(node) else expected)


@pytest.mark.timeout(240)
async def test_c49_a_freeze_during_the_roll_over_still_freezes_each_time(rolling):
    """Freeze and unfreeze, again and again, while other messages make it begin anew."""
    busy = asyncio.create_task(a_node_speaks(rolling.permits, "x01", 300))
    for number in range(12):
        by = f"ann{number}"
        assert (await rolling.permits.freeze(POOL, BudgetSwitch(by, "x"))).frozen_by == by
        assert (await rolling.permits.status(POOL)).frozen_by == by
        assert (await rolling.permits.unfreeze(POOL, BudgetSwitch(by, "x"))).frozen_by is None
    await rolling.permits.freeze(POOL, BudgetSwitch("bob", "the last word"))
    await busy
    assert (await rolling.permits.status(POOL)).frozen_by == "bob"
    assert await runs_of(rolling) >= 3


@pytest.mark.timeout(240)
async def test_c49_the_last_word_about_a_withheld_node_stands(temporal_cli):
    async with (
        small_server(temporal_cli, events=50) as env,
        running(env, count=2, budget=BudgetPolicy(allowance=1, cap=3)) as loop,
    ):

        async def speak(node, *, last):
            mark = WithholdAsk(node, f"g-{node}", "no_fresh_data", hard=False, factors={})
            for _ in range(20):
                await loop.permits.ask_withhold(POOL, mark)
                await loop.permits.end_withhold(POOL, WithholdEnded(node, "data is back"))
            if last:
                await loop.permits.ask_withhold(POOL, mark)

        await asyncio.gather(speak("n001", last=True), speak("n002", last=False))
        await loop.until("n001 stays withheld", lambda: not loop.fleet["n001"].gate_open)
        await loop.until("n002 is open", lambda: loop.fleet["n002"].gate_open)

        async def settled():
            return (await loop.permits.status(POOL)).withheld == ("n001",)

        await loop.until("the budget says so too", settled)
        assert await runs_of(loop) >= 2

        async def lifted():
            return await loop.records.holds("n002") == ()

        await loop.until("no hold of ours is left on n002", lifted)
