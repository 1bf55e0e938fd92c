"""The rules every adapter keeps, ours and anybody's: each is one async function of a bench.

A test calls them one by one, so that a failure has the name of the rule:

```python
@pytest.mark.parametrize("rule", SCHEDULER_RULES, ids=lambda rule: rule.__name__)
async def test_my_scheduler(rule):
    await rule(SchedulerBench(MyScheduler(...), node="n1", start_job=..., mark_of_another=...))
```

A bench names a port and the few ways in which the test changes the world behind it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sickbay.contracts.steps import Action, DrainState, Outcome, PageDraft, Permission, TicketDraft
from sickbay.domain.gate import MARK_PREFIX
from sickbay.errors import EvidenceMissing
from sickbay.ports import Evidence, Pager, Safety, Scheduler, Tickets

OURS = f"{MARK_PREFIX}conformance.1"
OURS_TOO = f"{MARK_PREFIX}conformance.2"
FOREIGN = "kernel update by the night shift"


class NonConforming(AssertionError):
    """An adapter breaks a rule; the message names the rule."""


def _must(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise NonConforming(rule)


# --- scheduler ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SchedulerBench:
    """A scheduler, an idle open node of it, and how to start a job and place another's mark."""

    scheduler: Scheduler
    node: str
    start_job: Callable[[str], Awaitable[str]]
    mark_of_another: Callable[[str, str], Awaitable[None]]

    async def marks(self) -> set[str]:
        """The marks on the node."""
        return {mark for mark, _ in await self.scheduler.marks(self.node)}

    async def close(self, mark: str = OURS) -> Outcome:
        """Close the gate with a mark of ours."""
        effect = await self.scheduler.close_gate(self.node, mark=mark, reason="conformance")
        return effect.outcome


async def closing_twice_is_once(bench: SchedulerBench) -> None:
    """A mark placed twice stands once, and one opening takes it away."""
    for _ in range(2):
        _must(await bench.close() is Outcome.SUCCEEDED, "close_gate succeeds, also repeated")
    marks = [mark for mark, _ in await bench.scheduler.marks(bench.node)]
    _must(marks.count(OURS) == 1, "a mark placed twice stands once")
    await bench.scheduler.open_gate(bench.node, mark=OURS)
    _must(OURS not in await bench.marks(), "open_gate takes the mark away")


async def opening_what_is_open_succeeds(bench: SchedulerBench) -> None:
    """A mark that is already gone is a success: a retry may follow a lost answer."""
    for _ in range(2):
        effect = await bench.scheduler.open_gate(bench.node, mark=OURS)
        _must(effect.outcome is Outcome.SUCCEEDED, "open_gate of a mark that is gone succeeds")


async def only_the_named_mark_is_taken_away(bench: SchedulerBench) -> None:
    """Another's mark, and another mark of ours, stay."""
    await bench.mark_of_another(bench.node, FOREIGN)
    await bench.close(OURS)
    await bench.close(OURS_TOO)
    await bench.scheduler.open_gate(bench.node, mark=OURS)
    _must(await bench.marks() == {FOREIGN, OURS_TOO}, "open_gate touches the named mark only")


async def a_running_job_is_draining_and_named(bench: SchedulerBench) -> None:
    """Draining is not drained, and the answer names what blocks."""
    job = await bench.start_job(bench.node)
    await bench.close()
    state = await bench.scheduler.drain_state(bench.node)
    _must(state.state is DrainState.DRAINING, "a closed node with a job is draining")
    _must(job in state.blocking, "a drain that is blocked names the job")


async def an_open_idle_node_is_not_drained(bench: SchedulerBench) -> None:
    """Without our mark a job may start at any moment, so the node is not drained."""
    state = await bench.scheduler.drain_state(bench.node)
    _must(state.state is not DrainState.DRAINED, "an open node is never drained")


async def an_eviction_needs_our_mark(bench: SchedulerBench) -> None:
    """Jobs end only behind a gate that our mark closes, and then the node is drained."""
    await bench.start_job(bench.node)
    early = await bench.scheduler.evict(bench.node, mark=OURS, reason="conformance")
    _must(early.outcome is not Outcome.SUCCEEDED, "evict refuses a gate our mark does not close")
    state = await bench.scheduler.drain_state(bench.node)
    _must(bool(state.blocking), "a refused eviction ends no job")
    await bench.close()
    done = await bench.scheduler.evict(bench.node, mark=OURS, reason="conformance")
    _must(done.outcome is Outcome.SUCCEEDED, "evict succeeds behind our mark")
    state = await bench.scheduler.drain_state(bench.node)
    _must(state.state is DrainState.DRAINED, "an evicted node is drained")


SCHEDULER_RULES = (
    closing_twice_is_once,
    opening_what_is_open_succeeds,
    only_the_named_mark_is_taken_away,
    a_running_job_is_draining_and_named,
    an_open_idle_node_is_not_drained,
    an_eviction_needs_our_mark,
)


# --- tickets ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TicketsBench:
    """A tracker, and how to read the lines of a ticket and whether it is open."""

    tickets: Tickets
    lines: Callable[[str], Awaitable[list[str]]]
    is_open: Callable[[str], Awaitable[bool]]
    draft: TicketDraft


async def one_key_is_one_ticket(bench: TicketsBench) -> None:
    """The same key finds the same ticket; another key is another."""
    first = await bench.tickets.open(bench.draft)
    again = await bench.tickets.open(bench.draft)
    other = await bench.tickets.open(replace(bench.draft, key=f"{bench.draft.key}/other"))
    _must(first == again, "the same key is the same ticket")
    _must(first != other, "another key is another ticket")


async def a_closed_ticket_is_reopened(bench: TicketsBench) -> None:
    """The fault came back: people find one story, not two tickets."""
    ticket = await bench.tickets.open(bench.draft)
    await bench.tickets.close(ticket, text="done")
    _must(not await bench.is_open(ticket), "close closes")
    _must(await bench.tickets.open(bench.draft) == ticket, "the closed ticket is found again")
    _must(await bench.is_open(ticket), "a ticket that is asked for again is open")


async def a_repeated_line_is_one_line(bench: TicketsBench) -> None:
    """A comment sent again by a retry is the same comment."""
    ticket = await bench.tickets.open(bench.draft)
    for _ in range(2):
        effect = await bench.tickets.comment(ticket, text="on my way")
        _must(effect.outcome is Outcome.SUCCEEDED, "comment succeeds, also repeated")
    _must((await bench.lines(ticket)).count("on my way") == 1, "a repeated line is one line")


async def an_unknown_ticket_is_permanent(bench: TicketsBench) -> None:
    """A ticket that is not there is an outcome, and no retry would help."""
    for call in (bench.tickets.comment, bench.tickets.close):
        effect = await call("404404", text="hello")
        _must(effect.outcome is Outcome.PERMANENT, "an unknown ticket is permanent")


TICKETS_RULES = (
    one_key_is_one_ticket,
    a_closed_ticket_is_reopened,
    a_repeated_line_is_one_line,
    an_unknown_ticket_is_permanent,
)


# --- pager --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PagerBench:
    """A pager, and how to read the keys that were delivered."""

    pager: Pager
    delivered: Callable[[], Awaitable[list[str]]]


async def one_key_is_one_page(bench: PagerBench) -> None:
    """The same key is delivered once, however often it is asked."""
    draft = PageDraft(key="conformance/1", pool="train", summary="needs a human")
    for key in ("conformance/1", "conformance/1", "conformance/2"):
        effect = await bench.pager.page(replace(draft, key=key))
        _must(effect.outcome is Outcome.SUCCEEDED, "a repeated page is a success")
    keys = await bench.delivered()
    _must(sorted(keys) == ["conformance/1", "conformance/2"], "one key is one page")


PAGER_RULES = (one_key_is_one_page,)


# --- evidence -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvidenceBench:
    """An evidence store, and how to change the stored bytes of a digest behind its back."""

    evidence: Evidence
    tamper: Callable[[str, bytes], Awaitable[None]]


async def bytes_come_back(bench: EvidenceBench) -> None:
    """What was put is what is got, and its size is right."""
    for data in (b"", b"raw output \x00\xff", b"x" * 1_000_000):
        ref = await bench.evidence.put(data, kind="conformance")
        _must(await bench.evidence.get(ref.sha256) == data, "the same bytes come back")
        _must(ref.size_bytes == len(data), "the reference has the size")


async def the_same_bytes_are_the_same_reference(bench: EvidenceBench) -> None:
    """Content is the name."""
    refs = {(await bench.evidence.put(b"twice", kind="k")).sha256 for _ in range(2)}
    _must(len(refs) == 1, "the same bytes are one reference")


async def what_is_not_there_is_missing(bench: EvidenceBench) -> None:
    """An unknown digest, or a name that is none, is `EvidenceMissing`."""
    for name in ("ab" * 32, "", "../../etc/passwd"):
        _must(await _is_missing(bench, name), f"{name!r} is missing")


async def changed_bytes_are_missing(bench: EvidenceBench) -> None:
    """Bytes that no longer match their digest are never given out."""
    ref = await bench.evidence.put(b"the truth", kind="k")
    await bench.tamper(ref.sha256, b"a lie")
    _must(await _is_missing(bench, ref.sha256), "changed bytes are missing")


async def _is_missing(bench: EvidenceBench, digest: str) -> bool:
    try:
        await bench.evidence.get(digest)
    except EvidenceMissing:
        return True
    return False


EVIDENCE_RULES = (
    bytes_come_back,
    the_same_bytes_are_the_same_reference,
    what_is_not_there_is_missing,
    changed_bytes_are_missing,
)


# --- safety -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SafetyBench:
    """Switches under which `acting` may act in pool `train`, and how to stop, go and blind them.

    `stop` and `go` take a pool, or None for the fleet. `blind` makes the switches unreadable; None
    when they are read from nothing that can fail.
    """

    safety: Safety
    acting: Action
    stop: Callable[[str | None], Awaitable[None]]
    go: Callable[[str | None], Awaitable[None]]
    blind: Callable[[], Awaitable[None]] | None = None

    async def says(self, pool: str = "train") -> Permission:
        """What the switches say of the acting action now."""
        return await self.safety.permission(pool=pool, action=self.acting)


async def a_stop_is_read_every_time(bench: SafetyBench) -> None:
    """A stop of the pool or the fleet holds at the next reading, and ends with its `go`."""
    for scope in ("train", None):
        _must(await bench.says() is Permission.ACT, "without a stop the mode counts")
        await bench.stop(scope)
        _must(await bench.says() is Permission.STOPPED, "a stop holds at once")
        await bench.go(scope)
    _must(await bench.says() is Permission.ACT, "after `go` the mode counts again")


async def a_pools_stop_is_its_own(bench: SafetyBench) -> None:
    """Stopping one pool stops no other."""
    await bench.stop("another pool")
    _must(await bench.says() is Permission.ACT, "another pool's stop is not ours")


async def an_unreadable_switch_is_a_stop(bench: SafetyBench) -> None:
    """Not knowing whether one may act means that one may not."""
    if bench.blind is not None:
        await bench.blind()
        _must(await bench.says() is Permission.STOPPED, "an unreadable switch is a stop")


SAFETY_RULES = (a_stop_is_read_every_time, a_pools_stop_is_its_own, an_unreadable_switch_is_a_stop)
