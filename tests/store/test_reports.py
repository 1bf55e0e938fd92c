"""The summary, on a history written by hand: an untested return among it must be found."""

from dataclasses import replace

import pytest

from sickbay.domain.gate import HoldKind
from sickbay.domain.health import Standing
from sickbay.domain.node import Treatment
from sickbay.domain.usage import Band
from sickbay.store.queries import StepRow
from sickbay.store.reports import fleet_usage, summary, was_proven
from tests.store.conftest import HEALTHY, SICK, T0, at, hold, page, repair, step

RESET, SWAP = Treatment.RESET, Treatment.SWAP


def row(ordinal: int, words: str) -> StepRow:
    """`reset:done` as a step; a treatment's stage carries its treatment."""
    stage, outcome = words.split(":")
    acts = {"reset", "reboot", "swap"}
    treatment = stage if stage in acts and outcome != "observed" else None
    return StepRow(ordinal, stage, outcome, "", T0, T0, treatment=treatment, evidence=())


HISTORIES = {
    "treated, two passes": ("diagnose:confirmed reset:done prove:passed prove:passed", True),
    "treated, one pass": ("diagnose:confirmed reset:done prove:passed", False),
    "no proof at all": ("diagnose:confirmed reset:done", False),
    "nothing at all": ("", False),
    "a failure between": ("reset:done prove:passed prove:failed prove:passed", False),
    "inconclusive between": ("reset:done prove:passed prove:inconclusive prove:passed", False),
    "unreachable between": ("reset:done prove:passed prove:unreachable prove:passed", False),
    "treated between": ("reset:done prove:passed reboot:done prove:passed", False),
    "a failed act between": ("reset:done prove:passed reboot:failed prove:passed", False),
    "last act, then two": ("reset:done prove:failed swap:replaced prove:passed prove:passed", True),
    "a job in the way": ("reset:done prove:passed prove:blocked prove:passed", True),
    "a switch in the way": ("reset:done prove:passed prove:observed prove:passed", True),
    "not confirmed, one pass": ("diagnose:not_confirmed prove:passed", True),
    "not confirmed, no pass": ("diagnose:not_confirmed", False),
    "not confirmed, retried": ("diagnose:not_confirmed prove:inconclusive prove:passed", True),
    "not confirmed, failed": ("diagnose:not_confirmed prove:failed prove:passed", False),
    "never diagnosed, one pass": ("diagnose:inconclusive prove:passed", False),
    "cleared after a treatment": ("reset:done diagnose:not_confirmed prove:passed", False),
    "passes after the return": ("reset:done return:returned prove:passed prove:passed", False),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_the_owed_passes_are_recomputed_from_the_steps(name):
    words, proven = HISTORIES[name]
    steps = [row(i, w) for i, w in enumerate(words.split())]
    assert was_proven(steps) is proven


def test_a_swap_owes_two_passes_whatever_the_policy():
    swapped = [row(1, "swap:replaced"), row(2, "prove:passed")]
    assert was_proven([row(1, "reset:done"), row(2, "prove:passed")], passes_owed=1)
    assert not was_proven(swapped, passes_owed=1)


async def write(records, name, node, words, **ends) -> None:
    """A repair with its steps; `ends` as of the repair's row."""
    for i, word in enumerate(words.split(), start=1):
        stage, outcome = word.split(":")
        treatment = Treatment(stage) if stage in {"reset", "swap"} else None
        await records.save_step(step(name, node, i, stage, outcome, treatment=treatment))
    await records.save_repair(repair(name, node, ended_at=at(50), **ends))
    if ends.get("ending") == "returned":
        await records.returned(node, repair_id=name, at=at(50))


@pytest.fixture
async def history(records):
    await write(
        records,
        "good",
        "n1",
        "diagnose:confirmed reset:done prove:failed swap:replaced prove:passed prove:passed",
        ending="returned",
        cured_by=SWAP,
        confirmed=True,
    )
    await write(
        records,
        "false-alarm",
        "n1",
        "diagnose:not_confirmed prove:passed",
        ending="returned",
        confirmed=False,
    )
    await write(
        records,
        "untested",
        "n2",
        "diagnose:confirmed reset:done prove:passed",
        ending="returned",
        cured_by=RESET,
        confirmed=True,
    )
    await write(
        records, "released", "n2", "diagnose:confirmed", ending="released_by_person", confirmed=True
    )
    await write(records, "running", "n1", "diagnose:inconclusive")
    await records.save_page(page(), at=at(1))
    await records.save_would_have(
        node="n1", pool="train", action="reset", detail="", why="observe", at=at(1)
    )


async def test_the_one_untested_return_is_found_and_a_release_is_not_a_return(
    history, store, records
):
    found = await summary(store, now=at(60))
    assert found.returned_untested == ("untested",)
    assert found.returned == 3
    assert found.by_ending == {"returned": 3, "released_by_person": 1}
    assert found.running == 1


async def test_a_return_in_the_ledger_without_a_repair_is_untested(store, records):
    await records.returned("n1", repair_id="ghost", at=at(1))
    found = await summary(store, now=at(60))
    assert (found.returned, found.returned_untested) == (1, ("ghost",))


async def test_cures_proofs_pages_and_precision(history, store):
    found = await summary(store, now=at(60))
    assert found.by_cure == {"swap": 1, "reset": 1, "nothing: not confirmed": 1}
    assert found.proofs == {"passed": 4, "failed": 1}
    assert (found.pages, found.urgent_pages, found.would_have) == (1, 1, 1)
    assert found.not_confirmed == 1
    assert found.unconfirmed_share == pytest.approx(1 / 3)
    assert found.precision == pytest.approx(3 / 4)
    assert found.seconds_by_stage["prove"] == (5, 60.0, 60.0)


async def test_an_empty_store_has_a_summary_without_made_up_shares(store):
    found = await summary(store, now=at(60))
    assert (found.nodes, found.repairs, found.returned_untested) == (0, 0, ())
    assert (found.unconfirmed_share, found.precision, found.usage.total) == (None, None, 0)


async def test_usable_compute_is_integrated_from_exact_times(store, records):
    for node in ("n1", "n2"):
        await records.save_health(
            node, health=HEALTHY, standing=Standing.HEALTHY, at=at(10), rules="1"
        )
    await records.save_health(
        "n1", health=SICK, standing=Standing.QUARANTINED, at=at(30), rules="1"
    )
    await records.gate_moved("n1", open_=False, at=at(35))
    found = await fleet_usage(store, start=T0, end=at(60))
    minutes = {band: found.gpu_seconds[band] / 60 / 2 for band in Band}
    assert minutes == {
        Band.UNKNOWN: 20,
        Band.USABLE: 20 + 50,
        Band.SICK_OPEN: 5,
        Band.OUT: 25,
        Band.HEALTHY_CLOSED: 0,
        Band.MAINTENANCE: 0,
    }
    assert found.usable == pytest.approx(70 / 120)
    assert found.usable_of_known == pytest.approx(70 / 100)


async def test_an_administrators_hold_is_planned_maintenance_while_it_stands(store, records):
    await records.place_hold(
        replace(hold("n1", id_="ann", kind=HoldKind.OPERATOR), placed_at=at(10))
    )
    await records.lift_hold("ann", by="ann", at=at(40))
    found = await fleet_usage(store, start=T0, end=at(60))
    assert found.gpu_seconds[Band.MAINTENANCE] == 2 * 30 * 60
