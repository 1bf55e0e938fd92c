"""Checks pushed items, each by itself, against the nodes on record and the rule set.

What cannot be used is told back with its place and its field; the other items of a push count.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sickbay.contracts.pushes import PushedEvent, PushedSignal
from sickbay.domain.node import Node, Part
from sickbay.scoring.ruleset import RuleSet

# Two clocks differ; a reading from far ahead would outlive every later one.
AHEAD = timedelta(seconds=60)
BEHIND = timedelta(hours=24)
_BUS = re.compile(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?$")

Id = Annotated[str, Field(min_length=1, max_length=128)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
LabelValue = Annotated[str, Field(max_length=256)]
M = TypeVar("M", bound=BaseModel)


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    id: Id
    node: Name
    at: Annotated[AwareDatetime, Field(strict=False)]


class SignalItem(_Item):
    """One reading of one part, as it is sent."""

    part: Name
    signal: Name
    value: float | None
    unit: str = Field(default="", max_length=32)
    labels: dict[Name, LabelValue] = Field(default_factory=dict, max_length=16)


class EventItem(_Item):
    """One event, as it is sent: a line of the kernel's log, or an Xid of a part."""

    kind: Literal["kernel", "xid"]
    message: str = Field(default="", max_length=4096)
    part: str = Field(default="", max_length=128)
    xid: int | None = Field(default=None, ge=1, le=100_000)
    boot_id: str = Field(default="", max_length=64)
    monotonic_us: int | None = Field(default=None, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _whole(self) -> "EventItem":
        if self.kind == "kernel" and not self.message:
            raise ValueError("a kernel event has a message")
        if self.kind == "xid" and (self.xid is None or not self.part):
            raise ValueError("an xid event has xid and part")
        return self


@dataclass(frozen=True)
class ItemError:
    """Why one item does not count: its place in its list, its field, and what would be right."""

    list: str
    index: int
    id: str
    field: str
    message: str


class _Wrong(Exception):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class Gatekeeper:
    """Turns items into what is kept.

    Args:
        nodes: the nodes on record, by id.
        rules: the rule set whose signals may be pushed.
        now: the present moment, UTC-aware.
    """

    def __init__(self, nodes: Mapping[str, Node], *, rules: RuleSet, now: datetime) -> None:
        self._nodes = nodes
        self._signals = {rule.name: rule for rule in rules.signals}
        self._now = now

    def signal(self, item: Any, *, index: int) -> PushedSignal | ItemError:
        """One reading, or why it does not count."""
        try:
            sent = _parsed(SignalItem, item)
            uuid = _part(self._node(sent), sent.part).uuid
            self._may_be_pushed(sent)
        except _Wrong as wrong:
            return _error("signals", index, item, wrong)
        return PushedSignal(
            sent.id, sent.node, uuid, sent.signal, sent.value, sent.at, dict(sent.labels)
        )

    def event(self, item: Any, *, index: int) -> PushedEvent | ItemError:
        """One event, or why it does not count."""
        try:
            sent = _parsed(EventItem, item)
            node = self._node(sent)
            message = sent.message
            if sent.kind == "xid":
                where = _address(_part(node, sent.part))
                message = f"NVRM: Xid (PCI:{where}): {sent.xid}, {message or 'pushed'}"
        except _Wrong as wrong:
            return _error("events", index, item, wrong)
        since_epoch_us = int(sent.at.timestamp() * 1e6)
        stamp = since_epoch_us if sent.monotonic_us is None else sent.monotonic_us
        return PushedEvent(sent.id, sent.node, sent.boot_id, stamp, message, sent.at)

    def _may_be_pushed(self, sent: SignalItem) -> None:
        rule = self._signals.get(sent.signal)
        if rule is None or not rule.metrics:
            raise _Wrong("signal", f"the rule set has no signal {sent.signal!r} to push")
        if rule.liveness:
            raise _Wrong("signal", f"{sent.signal} shows that its collector lives: not pushed")
        if sent.unit and sent.unit != rule.unit:
            raise _Wrong("unit", f"{sent.signal} is in {rule.unit}")
        if sent.value is not None and not math.isfinite(sent.value):
            raise _Wrong("value", "no finite number: send null for a reading that failed")

    def _node(self, sent: _Item) -> Node:
        node = self._nodes.get(sent.node)
        if node is None:
            raise _Wrong("node", f"no node {sent.node!r} is on record")
        if sent.at > self._now + AHEAD:
            raise _Wrong("at", "lies in the future: look at the sender's clock")
        if sent.at < self._now - BEHIND:
            raise _Wrong("at", "is more than a day old")
        return node


def _address(part: Part) -> str:
    bus = _BUS.match(part.bus_id)
    if bus is None:
        raise _Wrong("part", f"the bus address of {part.slot} is not on record")
    return f"{int(bus[1], 16):04x}:{bus[2]}:{bus[3]}".lower()


def _part(node: Node, name: str) -> Part:
    found = next((p for p in node.parts if name in (p.uuid, p.slot)), None)
    if found is None:
        raise _Wrong("part", f"{node.id} has no part {name!r}: give its UUID or its slot")
    return found


def _parsed(model: type[M], item: Any) -> M:
    try:
        return model.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Wrong(where, str(first["msg"]).removeprefix("Value error, ")) from None


def _error(name: str, index: int, item: Any, wrong: _Wrong) -> ItemError:
    told = item.get("id") if isinstance(item, dict) else ""
    return ItemError(name, index, str(told or "")[:128], wrong.field, wrong.message)
