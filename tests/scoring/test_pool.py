"""The scorer as its users see it: what a bent page or a kernel line makes of a node."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Treatment
from sickbay.scoring.pool import PoolScorer
from sickbay.scoring.ruleset import RuleSet

XID_79 = "NVRM: Xid (PCI:0000:13:00): 79, pid=9962, name=python, GPU has fallen off the bus."
XID_13 = "NVRM: Xid (PCI:0000:13:00): 13, pid=77, name=python, Graphics Exception: ESR 0x404490"
XID_48 = "NVRM: Xid (PCI:0000:13:00): 48, pid=1, An uncorrectable double bit error (DBE)"


def one(changes, node="n000"):
    found = changes[node].findings
    assert len(found) == 1, found
    return found[0]


def test_a_new_pool_with_good_pages_is_healthy_and_then_silent(make_world):
    world = make_world(3)
    assert {world.scorer.standing_of(n.id) for n in world.nodes} == {Standing.HEALTHY}
    assert world.tick(100) == {}


def test_a_new_uncorrectable_error_is_a_hard_fail_at_once(world):
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=1.0)
    changes = world.tick()
    assert changes["n000"].standing is Standing.QUARANTINED
    assert changes["n000"].health.reason == "hard_fail:ecc_uncorrectable"
    finding = one(changes)
    assert (finding.slot, finding.treatment, finding.hard) == ("gpu3", Treatment.RESET, True)
    assert finding.part_uuid == "GPU-0-3"


def test_a_lifetime_of_old_errors_is_no_fault_when_first_seen(make_world, rules):
    world = make_world(1)
    world.scorer = PoolScorer(rules, times=rules.times)
    world.scorer.set_nodes(world.nodes)
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=7.0, XID_ERRORS=79.0)
    changes = world.tick(10)
    assert changes["n000"].standing is Standing.HEALTHY
    assert changes["n000"].findings == ()


def test_a_counter_reset_is_no_growth(world):
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=5.0)
    world.tick()
    world.scorer.returned("n000", at=world.now)
    world.tick()
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=0.0)
    assert all(not c.findings for c in world.tick(5).values())
    assert world.scorer.standing_of("n000") is Standing.HEALTHY


def test_a_sticky_gauge_is_one_event(world):
    world.bend("n000", "gpu3", XID_ERRORS=79.0)
    assert one(world.tick()).reason == "hard_fail:xid_79"
    assert all(not c.findings for c in world.tick(500).values())


def test_gauge_and_kernel_line_of_one_event_are_one_finding(world):
    world.bend("n000", "gpu3", XID_ERRORS=79.0)
    world.log("n000", XID_79)
    finding = one(world.tick(4))
    assert finding.source == "kernel_log"
    assert finding.treatment is Treatment.REBOOT


def test_a_line_printed_again_does_not_count_again(world):
    world.log("n000", XID_48)
    at = world.now
    assert one(world.tick()).reason == "hard_fail:xid_48"
    world.log("n000", XID_48, at=at)
    assert all(not c.findings for c in world.tick(3).values())


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_application_error_is_a_note_for_the_job_and_never_a_fault(world, code):
    for _ in range(20):
        world.log("n000", XID_13.replace(" 13,", f" {code},"))
        world.bend("n000", "gpu3", XID_ERRORS=float(code))
        assert world.tick() == {}
    notes = world.scorer.take_notes()
    assert {(n.node, n.slot, n.code) for n in notes} == {("n000", "gpu3", f"xid_{code}")}
    assert "77" in {n.pid for n in notes}


def test_an_unknown_code_never_gates(world):
    world.log("n000", "NVRM: Xid (PCI:0000:13:00): 9999, pid=1, something new")
    assert world.tick(20) == {}
    assert world.scorer.take_notes()[0].code == "xid_9999"


def test_154_on_every_gpu_belongs_to_the_one_that_is_lost(world):
    world.log("n000", XID_79)
    for slot in range(8):
        world.bend("n000", f"gpu{slot}", GPU_RECOVERY_ACTION=2.0)
    world.gone.add(("n000", "gpu3"))
    changes = world.tick(10)
    assert one(changes).slot == "gpu3"
    assert changes["n000"].health.reason in {"hard_fail:xid_79", "hard_fail:gpu_lost"}


def test_c27_a_recovery_action_alone_is_a_hard_fail_whatever_else_says(world):
    world.bend("n000", "gpu1", GPU_RECOVERY_ACTION=1.0)
    finding = one(world.tick())
    assert (finding.slot, finding.treatment) == ("gpu1", Treatment.RESET)
    world.bend("n001", "gpu1", GPU_RECOVERY_ACTION=2.0)
    assert one(world.tick(), "n001").treatment is Treatment.REBOOT


def test_a_gpu_absent_from_a_page_that_answers_is_lost(world):
    world.gone.add(("n000", "gpu5"))
    assert world.tick()["n000"].findings == ()
    finding = one(world.tick(3))
    assert (finding.reason, finding.slot) == ("hard_fail:gpu_lost", "gpu5")


def test_a_gpu_that_is_late_after_a_boot_is_not_lost_yet(world):
    world.silent.add("n000")
    world.tick(4)
    world.silent.clear()
    world.gone.add(("n000", "gpu5"))
    assert all(not c.findings for c in world.until(285).values())
    assert one(world.until(60)).reason == "hard_fail:gpu_lost"


def test_c02_a_page_that_names_no_gpu_is_unknown_and_no_fault(world):
    for slot in range(8):
        world.gone.add(("n000", f"gpu{slot}"))
    changes = world.until(3600)
    assert changes["n000"].standing is Standing.UNKNOWN
    assert changes["n000"].health.value is None
    assert changes["n000"].findings == ()


def test_an_outage_of_all_pages_makes_all_unknown_and_reports_nothing(make_world):
    world = make_world(6)
    world.silent = {n.id for n in world.nodes}
    changes = world.until(3600)
    assert {c.standing for c in changes.values()} == {Standing.UNKNOWN}
    assert all(not c.findings for c in changes.values())
    assert len(changes) == 6


def test_unknown_asks_to_withhold_once_after_the_grace_and_takes_it_back(world):
    world.silent.add("n000")
    asked = 0
    for at in range(200):
        change = world.tick().get("n000")
        if change and change.withhold:
            asked += 1
            assert at * world.step_s >= 600
    assert asked == 1
    world.silent.clear()
    back = world.tick()["n000"]
    assert back.unwithhold
    assert back.standing is Standing.HEALTHY


def test_a_frozen_page_is_unknown_although_it_answers(world):
    world.frozen.add("n000")
    changes = world.until(1200)
    assert changes["n000"].standing is Standing.UNKNOWN


def test_c42_a_pending_remap_schedules_a_reset_without_quarantine(world):
    world.bend("n000", "gpu2", ROW_REMAP_PENDING=1.0)
    changes = world.until(3600)
    finding = one(changes)
    assert (finding.hard, finding.treatment, finding.slot) == (False, Treatment.RESET, "gpu2")
    assert changes["n000"].standing is not Standing.QUARANTINED
    assert changes["n000"].health.value > 0.3


def test_c42_a_remap_failure_is_a_hard_fail_that_wants_a_swap(world):
    world.bend("n000", "gpu2", ROW_REMAP_FAILURE=1.0)
    assert one(world.tick()).treatment is Treatment.SWAP


def test_c42_a_pending_remap_alone_stays_above_the_quarantine_line(world):
    world.bend("n000", "gpu2", ROW_REMAP_PENDING=1.0, ECC_SBE_VOL_TOTAL=None)
    assert world.until(7200)["n000"].standing is Standing.DEGRADED


def test_what_happens_between_a_return_and_its_notice_is_not_lost(world):
    at = world.now
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=1.0)
    assert one(world.tick()).reason == "hard_fail:ecc_uncorrectable"
    world.scorer.returned("n000", at=at)
    assert world.tick() == {}
    assert world.scorer.standing_of("n000") is Standing.QUARANTINED


def test_a_node_under_a_hold_is_not_withheld_too(world):
    world.bend("n000", "gpu2", ROW_REMAP_PENDING=1.0)
    world.tick()
    world.held.add("n000")
    world.silent.add("n000")
    changes = world.until(3600)
    assert changes["n000"].standing is Standing.UNKNOWN
    assert not changes["n000"].withhold


@pytest.mark.parametrize("text", ["74, pid=1, name=python, NVLink: fatal error detected", "74"])
def test_an_nvlink_line_that_cannot_be_decoded_is_a_suspicion_with_a_dwell(world, text):
    world.log("n000", f"NVRM: Xid (PCI:0000:13:00): {text}")
    assert world.until(300)["n000"].findings == ()
    finding = one(world.until(600))
    assert (finding.reason, finding.slot) == ("min:interconnect", "gpu3")


def test_c12_a_corrected_error_rate_lowers_memory_even_with_half_the_samples_missing(world):
    total = 0.0
    changes = {}
    for at in range(80):
        total += 17_657 * world.step_s
        world.bend("n000", "gpu2", ECC_SBE_VOL_TOTAL=total)
        world.silent = {"n000"} if at % 2 else set()
        changes.update(world.tick())
    assert changes["n000"].health.reason == "min:memory"
    assert changes["n000"].health.signal == "ecc_corrected_rate"
    assert changes["n000"].standing is Standing.QUARANTINED


def test_a_slow_gpu_without_a_code_is_found_by_its_peers(world):
    world.bend("n000", "gpu4", SM_CLOCK=1480.0)
    changes = world.until(900)
    finding = one(changes)
    assert (finding.reason, finding.slot, finding.hard) == ("min:performance", "gpu4", False)
    assert changes["n000"].standing is Standing.QUARANTINED


def test_an_idle_gpu_with_a_low_clock_is_no_outlier(world):
    world.bend("n000", "gpu4", SM_CLOCK=345.0, GPU_UTIL=0.0)
    assert world.until(3600) == {}


def test_a_hot_gpu_with_slowdown_bits_is_quarantined_after_its_dwell(world):
    world.bend("n000", "gpu4", GPU_TEMP=95.0, CLOCKS_EVENT_REASONS=float(0x40))
    assert "n000" in world.until(300)
    assert world.scorer.standing_of("n000") is not Standing.QUARANTINED
    finding = one(world.until(600))
    assert finding.reason == "min:thermal"


def test_c39_impossible_values_are_missing_and_never_numbers(world):
    world.bend("n000", "gpu4", GPU_TEMP=0.0, MEMORY_TEMP=0.0, GPU_UTIL=4294967295.0)
    changes = world.until(3600)
    assert changes.get("n000") is None or changes["n000"].health.value == 1.0
    assert world.scorer.standing_of("n000") is Standing.HEALTHY


def test_low_confidence_is_unknown_but_a_hard_fail_still_acts(world):
    for slot in range(8):
        world.bend(
            "n000", f"gpu{slot}", POWER_USAGE=None, SM_CLOCK=None, GPU_TEMP=None,
            ROW_REMAP_FAILURE=None, XID_ERRORS=None,
        )  # fmt: skip
    health = world.tick()["n000"].health
    assert health.value is None
    assert health.confidence < 0.5
    world.bend("n000", "gpu0", ECC_DBE_VOL_TOTAL=1.0)
    change = world.tick()["n000"]
    assert change.standing is Standing.QUARANTINED
    assert change.health.confidence < 0.5


def test_after_a_return_nothing_old_counts_again(world):
    world.log("n000", XID_48)
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=3.0, XID_ERRORS=48.0)
    world.held.add("n000")
    world.tick()
    at = world.now
    world.until(7200)
    assert world.scorer.standing_of("n000") is Standing.QUARANTINED
    world.scorer.returned("n000", at=world.now)
    world.held.clear()
    world.log("n000", XID_48, boot="boot-0", at=at - timedelta(seconds=1))
    changes = world.tick(5)
    assert changes["n000"].standing is Standing.HEALTHY
    assert changes["n000"].findings == ()
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=4.0)
    assert one(world.tick()).reason == "hard_fail:ecc_uncorrectable"


def test_a_quarantine_with_a_hold_never_heals_by_itself_and_without_one_it_does(world):
    world.bend("n000", "gpu1", GPU_RECOVERY_ACTION=1.0)
    world.bend("n001", "gpu1", GPU_RECOVERY_ACTION=1.0)
    world.held.add("n000")
    world.tick()
    world.bent.clear()
    world.until(3 * 3600)
    assert world.scorer.standing_of("n000") is Standing.QUARANTINED
    assert world.scorer.standing_of("n001") is Standing.HEALTHY


def test_under_repair_a_newer_hard_fail_is_told_too(world):
    world.bend("n000", "gpu1", GPU_RECOVERY_ACTION=1.0)
    world.held.add("n000")
    first = one(world.tick())
    world.bend("n000", "gpu6", ROW_REMAP_FAILURE=1.0)
    second = one(world.tick(3))
    assert first.id != second.id
    assert second.slot == "gpu6"


def test_a_swapped_part_starts_with_an_empty_history(world):
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=0.0)
    world.tick()
    world.uuids["n000", "gpu3"] = "GPU-new"
    world.bend("n000", "gpu3", ECC_DBE_VOL_TOTAL=9.0, XID_ERRORS=79.0)
    assert all(not c.findings for c in world.tick(10).values())
    parts = tuple(
        replace(p, uuid="GPU-new", serial="new") if p.slot == "gpu3" else p
        for p in world.nodes[0].parts
    )
    world.nodes[0] = replace(world.nodes[0], parts=parts)
    world.scorer.set_nodes(world.nodes)
    assert all(not c.findings for c in world.tick(10).values())


def test_a_restart_keeps_the_standing_and_repeats_the_same_id(world, rules):
    world.bend("n000", "gpu1", ROW_REMAP_FAILURE=1.0)
    before = world.tick()["n000"]
    world.scorer = PoolScorer(rules, times=rules.times)
    world.scorer.set_nodes(world.nodes)
    world.scorer.restore("n000", health=before.health, standing=before.standing, since=before.since)
    assert world.scorer.standing_of("n000") is Standing.QUARANTINED
    again = one(world.tick())
    assert again.id == before.findings[0].id


def test_c35_a_restart_is_never_fresh_healthy(rules, world):
    health = Health(0.1, 1.0, None, "min:memory")
    world.scorer = PoolScorer(rules, times=rules.times)
    world.scorer.set_nodes(world.nodes)
    world.scorer.restore("n000", health=health, standing=Standing.QUARANTINED, since=world.now)
    world.held.add("n000")
    world.tick(200)
    assert world.scorer.standing_of("n000") is Standing.QUARANTINED


def test_the_order_of_nodes_changes_nothing(make_world: Callable, rules: RuleSet):
    results = []
    for turned in (False, True):
        world = make_world(4)
        world.nodes = world.nodes[::-1] if turned else world.nodes
        world.scorer = PoolScorer(rules, times=rules.times)
        world.scorer.set_nodes(world.nodes)
        world.tick(3)
        world.bend("n001", "gpu1", GPU_TEMP=90.0)
        world.bend("n002", "gpu2", SM_CLOCK=1700.0)
        world.bend("n003", "gpu0", ECC_DBE_VOL_TOTAL=1.0)
        changes = world.tick()
        results.append({n: (c.health, c.standing) for n, c in changes.items()})
    assert results[0] == results[1]
    assert len(results[0]) == 3


def test_at_720_times_the_speed_rates_and_dwells_mean_the_same(make_fast_world):
    world = make_fast_world(720.0)
    for at in range(10):
        # 2,000 errors an hour on one node, 50 on the other; an hour is five seconds.
        world.bend("n000", "gpu1", ECC_SBE_VOL_TOTAL=at * 400.0)
        world.bend("n001", "gpu1", ECC_SBE_VOL_TOTAL=at * 10.0)
        world.tick()
    assert world.scorer.standing_of("n000") is Standing.QUARANTINED
    assert world.scorer.standing_of("n001") is Standing.HEALTHY
    world.silent.add("n001")
    world.tick(2)
    world.silent.clear()
    world.tick()
    assert world.scorer.standing_of("n001") is Standing.HEALTHY
