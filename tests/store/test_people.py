"""Tickets, pages, permits and withheld acts: asked twice, they are one."""

import pytest
from sqlalchemy import select

from sickbay.adapters.local_pager import LocalPager
from sickbay.adapters.local_tickets import LocalTickets
from sickbay.contracts.steps import Outcome
from sickbay.errors import UnknownTicket
from sickbay.store import tables as t
from sickbay.store.queries import open_tickets, page_rows, would_have_rows
from tests.store.conftest import T0, at, page, ticket


async def test_the_same_key_is_the_same_ticket(store, records):
    first = await records.save_ticket(ticket(), at=T0)
    assert await records.save_ticket(ticket(), at=at(1)) == first
    assert await records.save_ticket(ticket("n1/gpu1/memory"), at=at(1)) != first
    assert len(await open_tickets(store)) == 2


async def test_a_closed_ticket_is_reopened_with_a_line_that_says_so(store, records):
    number = await records.save_ticket(ticket(), at=T0)
    await records.ticket_line(number, text="replaced", at=at(1), close=True)
    assert await open_tickets(store) == []
    assert await records.save_ticket(ticket(), at=at(2)) == number
    (found,) = await open_tickets(store)
    assert found.lines == ("replaced", "reopened: the fault is back")


async def test_a_line_sent_again_by_a_retry_is_one_line(store, records):
    number = await records.save_ticket(ticket(), at=T0)
    for text in ("on my way", "on my way", "done", "on my way"):
        await records.ticket_line(number, text=text, at=at(1), close=False)
    (found,) = await open_tickets(store)
    assert found.lines == ("on my way", "done", "on my way")


async def test_closing_twice_keeps_the_first_time(store, records):
    number = await records.save_ticket(ticket(), at=T0)
    for minute in (1, 2):
        await records.ticket_line(number, text="replaced", at=at(minute), close=True)
    async with store.read() as db:
        assert (await db.execute(select(t.tickets.c.closed_at))).scalars().all() == [at(1)]


@pytest.mark.parametrize("bad", ["99", "abc", "", "²", "-1"])
async def test_an_unknown_ticket_is_said_so(records, bad):
    with pytest.raises(UnknownTicket):
        await records.ticket_line(bad, text="hello", at=T0, close=False)


async def test_a_page_is_new_once_and_its_repeats_are_counted(store, records):
    answers = [await records.save_page(page(), at=at(minute)) for minute in (1, 2, 3)]
    assert answers == [True, False, False]
    (found,) = await page_rows(store)
    assert (found.repeats, found.first_at) == (2, at(1))
    async with store.read() as db:
        assert (await db.execute(select(t.pages.c.last_at))).scalar() == at(3)


async def test_a_permit_event_is_booked_once(store, records):
    for event, minute in (("asked", 1), ("granted", 2), ("granted", 2)):
        await records.save_permit(
            "train", repair_id="r1", node="n1", event=event, at=at(minute), detail=""
        )
    async with store.read() as db:
        assert (await db.execute(select(t.permits.c.event))).scalars().all() == ["asked", "granted"]


async def test_withheld_acts_are_listed_newest_first(store, records):
    for minute, action in ((1, "close_gate"), (2, "reset")):
        await records.save_would_have(
            node="n1", pool="train", action=action, detail="d", why="observe", at=at(minute)
        )
    assert [r.action for r in await would_have_rows(store)] == ["reset", "close_gate"]


async def test_local_tickets_answer_with_outcomes_not_exceptions(store, records):
    tickets = LocalTickets(records, clock=lambda: at(3))
    number = await tickets.open(ticket())
    assert (await tickets.comment(number, text="hi")).outcome is Outcome.SUCCEEDED
    assert (await tickets.close(number, text="bye")).outcome is Outcome.SUCCEEDED
    assert await open_tickets(store) == []
    assert (await tickets.comment("77", text="hi")).outcome is Outcome.PERMANENT


async def test_the_local_pager_delivers_once_per_key(store, records):
    pager = LocalPager(records, clock=lambda: at(3))
    for _ in range(2):
        assert (await pager.page(page())).outcome is Outcome.SUCCEEDED
    assert len(await page_rows(store)) == 1
