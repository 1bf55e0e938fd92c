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


def test_each_kind_of_history_is_kept():
    assert {p.stem for p in HISTORIES} >= {
        "aborted",
        "adopted",
        "budget",
        "pair_blamed",
        "permit_waiting",
        "reboot_cured",
        "released",
        "reset_cured",
        "swap_waiting",
    }


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
