"""Rows of the tables as the domain's own shapes."""

from typing import Any

from sickbay.domain.gate import Hold, HoldKind
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Category, Node, Part, PartKind


def part_of(row: Any) -> Part:
    """A row of `parts`."""
    return Part(
        slot=row.slot,
        kind=PartKind(row.kind),
        uuid=row.uuid,
        serial=row.serial,
        bus_id=row.bus_id,
    )


def node_of(row: Any, *, parts: list[Part]) -> Node:
    """A row of `nodes` with its present parts."""
    return Node(
        id=row.id,
        pool=row.pool,
        group=row.node_group,
        rack=row.rack,
        node_class=row.node_class,
        parts=tuple(sorted(parts, key=lambda p: p.slot)),
        chassis=row.chassis,
        power_unit=row.power_unit,
    )


def hold_of(row: Any) -> Hold:
    """A row of `holds`."""
    return Hold(
        id=row.id,
        node=row.node,
        kind=HoldKind(row.kind),
        owner=row.owner,
        mark=row.mark,
        reason=row.reason,
        placed_at=row.placed_at,
        release_condition=row.release_condition,
        next_step=row.next_step,
        deadline=row.deadline,
        repair_id=row.repair_id,
        lifted_at=row.lifted_at,
        lifted_by=row.lifted_by,
    )


def health_of(row: Any) -> Health:
    """A row of `health_changes`."""
    return Health(
        value=row.value,
        confidence=row.confidence,
        worst=Category(row.worst) if row.worst else None,
        reason=row.reason,
        signal=row.signal,
        part=row.part,
        detail=row.detail,
    )


def standing_of(row: Any) -> Standing:
    """The standing of a row of `health_changes`."""
    return Standing(row.standing)
