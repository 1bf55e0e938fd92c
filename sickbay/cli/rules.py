"""Rule sets: look at one, compare two, watch one, have one decide, go back, and exceptions."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from sickbay.cli.output import Json, emit
from sickbay.cli.rule_replay import compare, replay_both
from sickbay.cli.session import By, Config, Reason, Session, State, run
from sickbay.contracts.rules import RuleChange, RuleException, RuleRole
from sickbay.errors import Refused, UsageError
from sickbay.rule_diff import differences
from sickbay.rules import read_rules
from sickbay.scoring.ruleset import RuleSet, load_ruleset
from sickbay.store.rule_book import StoreRuleBook

LONGEST_EXCEPTION_DAYS = 30.0
DAYS = 14.0
WHAT = ("list", "check", "diff", "shadow", "end-shadow", "activate", "rollback", "except")

What = Annotated[str, typer.Argument(help=f"One of: {', '.join(WHAT)}.")]
First = Annotated[str | None, typer.Argument(help="A rule set's file; a node for `except`.")]
Second = Annotated[str | None, typer.Argument(help="`except`: the signal. `diff`: a second file.")]
Approved = Annotated[
    str, typer.Option("--approved-by", help="The second person, who has looked at it too.")
]
History = Annotated[
    Path | None, typer.Option("--history", help="Recorded days to replay with both rule sets.")
]


@dataclass(frozen=True)
class Asked:
    """The arguments of one call."""

    first: str | None
    second: str | None
    by: str
    approved_by: str
    reason: str
    history: Path | None
    without_replay: bool
    days: float


def rules(
    what: What = "list",
    first: First = None,
    second: Second = None,
    by: By = "",
    approved_by: Approved = "",
    reason: Reason = "",
    history: History = None,
    without_replay: Annotated[
        bool, typer.Option("--without-replay", help="Activate without a history; recorded so.")
    ] = False,
    days: Annotated[
        float, typer.Option("--days", help="`except`: for how long. With a history: its least.")
    ] = DAYS,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Check, compare, watch, activate and take back rule sets; except a node from a signal."""
    if what not in WHAT:
        raise UsageError(f"no {what!r} here", field="what", remedy=f"one of {', '.join(WHAT)}")
    asked = Asked(first, second, by, approved_by, reason, history, without_replay, days)
    if what == "check":
        data, text = _check(asked)
    elif what == "diff" and second is not None:
        data, text = _diff(_file(asked.first), _file(second))
    else:

        async def work(session: Session) -> tuple[Any, str]:
            book = StoreRuleBook(session.store)
            return await _ACTS[what](session, book, asked)

        data, text = run(work, config=config, state=state)
    emit(data, text, as_json=as_json)


def _check(asked: Asked) -> tuple[Any, str]:
    found = load_ruleset(_file(asked.first))
    data = {"version": found.version, "digest": found.digest, "signals": len(found.signals)}
    return data, f"{asked.first}: good; {found.label}, {len(found.signals)} signals"


def _diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Any, str]:
    changed = differences(old, new)
    lines = [f"{one.key}: {one.before} -> {one.after}" for one in changed]
    return changed, "\n".join(lines) or "no difference"


async def _list(_session: Session, book: StoreRuleBook, _asked: Asked) -> tuple[Any, str]:
    changes, excepted = await book.changes(), await book.exceptions(now=_now())
    lines = [
        f"{c.at:%Y-%m-%d %H:%M} {c.role} {c.version or 'ended'}@{c.digest[:12]} by {c.by}"
        + (f" and {c.approved_by}" if c.approved_by else "")
        + f": {c.reason}"
        for c in changes
    ]
    lines += [
        f"{e.node}: {e.signal} does not count until {e.until_at:%Y-%m-%d %H:%M} (by {e.by}:"
        f" {e.reason})"
        for e in excepted
    ]
    shadow = next((c for c in changes if c.role is RuleRole.SHADOW), None)
    seen = await book.differences(shadow.digest) if shadow is not None else []
    found = [d for d in seen if d.active != d.shadow]
    lines += [f"{d.node}: {d.active}, but {d.shadow} under the shadow: {d.reason}" for d in found]
    data = {"changes": changes, "exceptions": excepted, "shadow_differences": found}
    return data, "\n".join(lines) or "the rule set of the settings decides; it was never changed"


async def _diff_active(session: Session, book: StoreRuleBook, asked: Asked) -> tuple[Any, str]:
    return _diff(await _active(session, book), _file(asked.first))


async def _shadow(_session: Session, book: StoreRuleBook, asked: Asked) -> tuple[Any, str]:
    _need(asked.by, "by")
    _need(asked.reason, "reason")
    content = _file(asked.first)
    found = load_ruleset(content)
    change = _change(RuleRole.SHADOW, found, asked, now=_now())
    await book.change(change, rules=found, content=content)
    return change, (
        f"{found.label} is watched from the next look at the inventory on; `sickbay rules` shows"
        " where nodes would stand otherwise"
    )


async def _end_shadow(_session: Session, book: StoreRuleBook, asked: Asked) -> tuple[Any, str]:
    _need(asked.by, "by")
    _need(asked.reason, "reason")
    ended = RuleChange(RuleRole.SHADOW, "", "", _now(), asked.by, "", asked.reason)
    await book.end_shadow(ended)
    return ended, "the shadow rule set has ended"


async def _activate(session: Session, book: StoreRuleBook, asked: Asked) -> tuple[Any, str]:
    _two_people(asked)
    content = _file(asked.first)
    found, old = load_ruleset(content), await _active(session, book)
    if found.digest == load_ruleset(old).digest:
        raise Refused(f"{found.label} decides already", remedy="nothing is to be done")
    if (asked.history is None) != asked.without_replay:
        raise UsageError(
            "an activation is either replayed on recorded days or said to be not",
            field="history",
            remedy=f"--history FILE with the last {DAYS:g} days, or --without-replay",
        )
    replayed: dict[str, Any] = {"skipped": True}
    if asked.history is not None:
        before, after = replay_both(asked.history, old=old, new=content, least_days=asked.days)
        replayed = compare(before, after)
    change = _change(RuleRole.ACTIVE, found, asked, now=_now(), replayed=replayed)
    await book.change(change, rules=found, content=content)
    text = f"{found.label} decides from the next look at the inventory on"
    if not asked.without_replay:
        text += f"\nnewly failing: {_names(replayed['newly_failing'])}"
        text += f"\nnewly passing: {_names(replayed['newly_passing'])}"
    return change, text


async def _rollback(_session: Session, book: StoreRuleBook, asked: Asked) -> tuple[Any, str]:
    _two_people(asked)
    active = [c for c in await book.changes() if c.role is RuleRole.ACTIVE]
    before = next((c for c in active if c.digest != active[0].digest), None)
    content = await book.content(before.digest) if before is not None else None
    if content is None:
        raise Refused(
            "there is no earlier rule set to go back to", remedy="activate the file you want"
        )
    found = load_ruleset(content)
    change = _change(RuleRole.ACTIVE, found, asked, now=_now(), replayed={"rollback": True})
    await book.change(change, rules=found, content=content)
    return change, f"{found.label} decides again"


async def _except(session: Session, book: StoreRuleBook, asked: Asked) -> tuple[Any, str]:
    _need(asked.by, "by")
    _need(asked.reason, "reason")
    node = await session.node(asked.first or "")
    names = {rule.name for rule in load_ruleset(await _active(session, book)).signals}
    if asked.second not in names:
        raise UsageError(
            f"the rule set has no signal {asked.second!r}",
            field="signal",
            remedy="`sickbay rules except NODE SIGNAL`, with a name of the rule set",
        )
    if not 0 < asked.days <= LONGEST_EXCEPTION_DAYS:
        raise UsageError(
            f"an exception of {asked.days:g} days",
            field="days",
            remedy=f"more than 0 and at most {LONGEST_EXCEPTION_DAYS:g}: then look again",
        )
    now = _now()
    until = now + timedelta(days=asked.days)
    given = RuleException(node.id, str(asked.second), now, until, asked.by, asked.reason)
    await book.add_exception(given)
    return given, f"{node.id}: {asked.second} does not count until {until:%Y-%m-%d %H:%M} UTC"


_ACTS: Mapping[str, Callable[[Session, StoreRuleBook, Asked], Awaitable[tuple[Any, str]]]] = {
    "list": _list,
    "diff": _diff_active,
    "shadow": _shadow,
    "end-shadow": _end_shadow,
    "activate": _activate,
    "rollback": _rollback,
    "except": _except,
}


async def _active(session: Session, book: StoreRuleBook) -> Mapping[str, Any]:
    active = (await book.present(now=_now())).active
    return read_rules(session.settings.rules) if active is None else active


def _change(
    role: RuleRole,
    found: RuleSet,
    asked: Asked,
    *,
    now: datetime,
    replayed: Mapping[str, Any] | None = None,
) -> RuleChange:
    return RuleChange(
        role, found.digest, found.version, now, asked.by, asked.approved_by, asked.reason,
        replayed or {},
    )  # fmt: skip


def _file(name: str | None) -> Mapping[str, Any]:
    if name is None:
        raise UsageError("name a rule set's file", field="file", remedy="e.g. rules.toml")
    return read_rules(Path(name))


def _two_people(asked: Asked) -> None:
    for field in ("by", "approved_by", "reason"):
        _need(getattr(asked, field), field)
    if asked.by.strip().casefold() == asked.approved_by.strip().casefold():
        raise Refused(
            f"{asked.by} cannot approve what {asked.by} changes",
            remedy="have a second person look, and name them with --approved-by",
        )


def _need(value: str, field: str) -> None:
    if not value.strip():
        option = field.replace("_", "-")
        raise UsageError(f"--{option} is needed", field=field, remedy=f"add --{option} ...")


def _names(nodes: list[str]) -> str:
    return ", ".join(nodes) or "none"


def _now() -> datetime:
    return datetime.now(UTC)
