"""Lasting states: flags and codes that stand on a page, and parts that are gone from it.

They follow fresh readings only: an unknown reading neither begins nor ends a state.
"""

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from sickbay.domain.signal import SignalKind
from sickbay.scoring.columns import Columns
from sickbay.scoring.incidents import TELEMETRY, Incident, Incidents
from sickbay.scoring.ruleset import RuleSet, Shape, SignalRule
from sickbay.scoring.shapes import Bools
from sickbay.scoring.xid import XidGate

GPU_LOST = "gpu_lost"


def update_states(
    *,
    columns: Columns,
    rules: RuleSet,
    incidents: Incidents,
    fresh: Bools,
    boot_grace_s: float,
    now: datetime,
) -> None:
    """Begin and end the lasting states of all parts whose source is fresh."""
    row_fresh = fresh[columns.node_of]
    for at, rule in enumerate(rules.signals):
        lasting = rule.kind in {SignalKind.FLAG, SignalKind.CODE}
        if not lasting or not (rule.shape is Shape.HARD_FAIL or rule.schedule):
            continue
        x = columns.values[:, at]
        with np.errstate(invalid="ignore"):
            bad, good = row_fresh & (x > 0), row_fresh & (x <= 0)
        for row in np.flatnonzero(bad).tolist():
            state = _state(columns, row, rule=rule, value=float(x[row]), now=now)
            incidents.of(state.node).set_state(state)
        _clear(columns, np.flatnonzero(good).tolist(), incidents=incidents, code=code_of(rule))
    _update_lost(
        columns, rules, incidents=incidents, fresh=row_fresh, boot_grace_s=boot_grace_s, now=now
    )


def code_of(rule: SignalRule) -> str:
    """The reason code of a signal."""
    return rule.code or rule.name


def _state(
    columns: Columns, row: int, *, rule: SignalRule, value: float, now: datetime
) -> Incident:
    part = columns.rows[row]
    return Incident(
        node=part.node,
        slot=part.slot,
        code=code_of(rule),
        gate=XidGate.FATAL if rule.shape is Shape.HARD_FAIL else XidGate.NOTE,
        category=rule.category,
        severity=rule.severity,
        treatment=rule.treatment_for(value),
        at=now,
        source=TELEMETRY,
        occurrence="",
        detail=f"{rule.name} reads {value:.0f}",
        consequence=rule.consequence,
    )


def _clear(columns: Columns, rows: Sequence[int], *, incidents: Incidents, code: str) -> None:
    for row in rows:
        part = columns.rows[row]
        here = incidents.nodes.get(part.node)
        if here is not None and here.states:
            here.clear_state(part.slot, code=code)


def _update_lost(
    columns: Columns,
    rules: RuleSet,
    *,
    incidents: Incidents,
    fresh: Bools,
    boot_grace_s: float,
    now: datetime,
) -> None:
    lost = rules.gpu_lost
    up_s = now.timestamp() - columns.up_since[columns.node_of]
    with np.errstate(invalid="ignore"):
        settled = fresh & (up_s >= boot_grace_s)
    for row in np.flatnonzero(settled & (columns.absent >= lost.samples)).tolist():
        part = columns.rows[row]
        state = Incident(
            node=part.node,
            slot=part.slot,
            code=GPU_LOST,
            gate=XidGate.FATAL,
            category=lost.category,
            severity=lost.severity,
            treatment=lost.treatment,
            at=now,
            source=TELEMETRY,
            occurrence="",
            detail="absent from a page that answers",
        )
        incidents.of(part.node).set_state(state)
    present = np.flatnonzero(fresh & (columns.absent == 0)).tolist()
    _clear(columns, present, incidents=incidents, code=GPU_LOST)
