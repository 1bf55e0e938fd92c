"""Histories recorded by earlier code still replay: a running repair survives an upgrade."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from sickbay.payloads import shared_data_converter
from workers.process import sandbox
from workflows.node_repair import NodeRepair
from workflows.pool_budget import PoolBudget

HISTORIES = sorted(Path(__file__).with_name("histories").glob("*.json"))


def history_in(path):
    """The history with its true workflow id: ours are part of what the workflow decides."""
    text = path.read_text(encoding="utf-8")
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


def replayer():
    return Replayer(
        workflows=[NodeRepair, PoolBudget],
        data_converter=shared_data_converter,
        workflow_runner=sandbox(),
    )


ENDED = {
    *("aborted", "adopted", "observed", "pair_blamed", "power_cycle_cured", "reboot_cured"),
    *("reflash_cured", "released", "reset_cured", "stale", "whole_ladder", "withdrawn"),
}
PARKED = {
    "approval_waiting",
    "drain_waiting",
    "needs_human_waiting",
    "permit_waiting",
    "swap_waiting",
}


def test_each_kind_of_history_is_kept():
    assert {p.stem for p in HISTORIES} >= ENDED | PARKED | {"budget"}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_history_ended_or_is_parked_as_its_name_says(path):
    """A parked one that had ended would test nothing of what waits."""
    events = json.loads(path.read_text(encoding="utf-8"))["events"]
    ended = events[-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
    assert ended == (path.stem in ENDED)
    assert (path.stem in PARKED | {"budget"}) != ended


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path):
    await replayer().replay_workflow(history_in(path))


async def test_a_history_of_another_order_of_steps_is_noticed():
    """The replay test would fail if the loop began its stages in another order."""
    path = next(p for p in HISTORIES if p.stem == "reset_cured")
    events = json.loads(path.read_text(encoding="utf-8"))
    for event in events["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes")
        if scheduled and scheduled["activityType"]["name"] == "drain":
            scheduled["activityType"]["name"] = "treat"
    started = events["events"][0]["workflowExecutionStartedEventAttributes"]
    changed = WorkflowHistory.from_json(started["workflowId"], json.dumps(events))
    with pytest.raises(Exception, match=r"(?i)nondeterminism|does not match"):
        await replayer().replay_workflow(changed)
