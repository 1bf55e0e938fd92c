"""Ids that must never change: replay does not compare an activity's inputs, so this does."""

import pytest

from sickbay.contracts import names

FIRST_RUN = "0199f0e2-5c1d-7aaa-8bbb-0123456789ab"


def test_a_repairs_name_is_its_node_and_its_first_run():
    assert names.repair_id("n001", FIRST_RUN) == "n001.0199f0e25c1d7aaa8bbb0123456789ab"[:17]
    assert names.repair_id("n001", FIRST_RUN) == "n001.0199f0e25c1d"


@pytest.mark.parametrize(
    ("ordinal", "verb", "expected"),
    [
        (1, "close_gate", "n001.0199f0e25c1d/001-close_gate"),
        (2, "drain", "n001.0199f0e25c1d/002-drain"),
        (2, "evict", "n001.0199f0e25c1d/002-evict"),
        (3, "diagnose", "n001.0199f0e25c1d/003-diagnose"),
        (4, "reset", "n001.0199f0e25c1d/004-reset"),
        (17, "power_cycle", "n001.0199f0e25c1d/017-power_cycle"),
        (1234, "prove", "n001.0199f0e25c1d/1234-prove"),
    ],
)
def test_an_operation_is_named_by_its_repair_its_step_and_its_verb(ordinal, verb, expected):
    assert names.operation_id("n001.0199f0e25c1d", ordinal, verb) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (names.repair_workflow_id("n001"), "node-repair/n001"),
        (names.budget_workflow_id("train"), "pool-budget/train"),
        (names.scoring_workflow_id("train"), "pool-scoring/train"),
        (names.node_queue("n001"), "node.n001"),
        (names.site_queue("oslo"), "site.oslo"),
        (names.CONTROL_QUEUE, "control"),
        (names.REPAIR_WORKFLOW, "NodeRepair"),
        (names.BUDGET_WORKFLOW, "PoolBudget"),
        (
            " ".join(names.SEARCH_ATTRIBUTES),
            "SickbayNode SickbayPool SickbayStage SickbayReason",
        ),
    ],
)
def test_names_that_cross_processes(made, expected):
    assert made == expected
