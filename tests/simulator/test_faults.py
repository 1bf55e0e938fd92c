"""Each fault as the outside sees it (page, kernel, tools), and what cures it."""

import re

import pytest

from sickbay.simulator.kinds import SAYS, FaultKind


def test_a_healthy_node_passes_every_tool(sim):
    assert sim.diag("3") == (0, {})
    assert sim.run("dcgmi", "health", "-s", "a").code == 0
    health = sim.run("dcgmi", "health", "-c", "-j").json()["body"]
    assert health == {"Overall Health": {"value": "Healthy"}}
    ran = sim.run("nvidia-smi", "-q", "-x")
    assert ran.code == 0
    assert ran.xml().findtext("attached_gpus") == "8"
    assert {g.findtext("gpu_recovery_action") for g in ran.xml().iter("gpu")} == {"None"}
    assert "<inactive>" not in sim.run("nvidia-smi", "nvlink", "-s").out


def test_a_reset_of_a_healthy_gpu_does_no_harm(sim):
    ran = sim.reset()
    assert ran.code == 0
    assert "was successfully reset" in ran.out
    assert sim.diag("3") == (0, {})
    assert len(sim.log("gpu_reset", slot="gpu3")) == 1


def test_remap_pending_ends_with_a_reset(sim):
    sim.inject("remap_pending")
    assert sim.metric("ROW_REMAP_PENDING") == 1
    assert sim.metric("XID_ERRORS") == 63
    assert any(": 63, " in line and "Row Remapper" in line for line in sim.kernel())
    xml = sim.run("nvidia-smi", "-q", "-x").xml()
    assert [g.findtext("remapped_rows/remapped_row_pending") for g in xml.iter("gpu")][3] == "Yes"
    assert sim.diag("1") == (226, {3: [85]})
    assert sim.reset().code == 0
    assert sim.metric("ROW_REMAP_PENDING") == 0
    assert sim.diag("2") == (0, {})
    assert sim.faults() == []


def test_an_uncorrectable_error_kills_the_job_and_ends_with_a_reset(busy):
    sim = busy
    sim.post("/scheduler/nodes/n001/drain", mark="test", reason="keep it empty")
    slot = sim.get("/scheduler/nodes/n001").json()["jobs"][0]["gpus"][0]
    sim.inject("ecc_uncorrectable", slot=slot)
    assert len(sim.log("job_killed", node="n001")) == 1
    assert sim.metric("ECC_DBE_VOL_TOTAL", slot=slot) == 1
    assert sim.metric("GPU_RECOVERY_ACTION", slot=slot) == 1
    assert any(re.search(r": 48, pid=\d+, name=python", line) for line in sim.kernel())
    code, errors = sim.diag("2")
    assert code == 205
    assert sorted(errors[int(slot[3:])]) == [4, 125]
    assert sim.reset(slot=slot).code == 0
    assert sim.metric("ECC_DBE_VOL_TOTAL", slot=slot) == 0
    assert sim.metric("ECC_DBE_AGG_TOTAL", slot=slot) == 1, "the lifetime total stays"
    assert sim.diag("2") == (0, {})


def test_a_hung_gpu_needs_a_reboot(sim):
    sim.inject("gsp_hang")
    energy = sim.metric("TOTAL_ENERGY_CONSUMPTION")
    assert sim.metric("TOTAL_ENERGY_CONSUMPTION") == energy, "its telemetry stands still"
    assert any(": 119, " in line for line in sim.kernel())
    assert "[GPU requires reset]" in sim.run("nvidia-smi", "-q", "-x").out
    assert sim.diag("2")[1].keys() == {3}
    assert sim.reset().code == 0
    assert sim.metric("GPU_RECOVERY_ACTION") == 1, "it hangs again at once"
    sim.reboot()
    assert sim.diag("2") == (0, {})
    assert sim.log("fault_cured")[0]["by"] == "reboot"


def test_remap_failure_stays_until_the_part_is_swapped(sim):
    sim.inject("remap_failure")
    assert any(": 64, " in line for line in sim.kernel())
    sim.reset()
    sim.reboot()
    assert sim.metric("ROW_REMAP_FAILURE") == 1
    assert sim.diag("1") == (226, {3: [80]})
    old = sim.part()
    new = sim.post("/technician/replace", node="n001", slot="gpu3").json()
    assert new["old_serial"] == old["serial"]
    assert sim.part()["serial"] == new["serial"] != old["serial"]
    assert sim.part()["uuid"] == new["uuid"] != old["uuid"]
    assert sim.metric("ROW_REMAP_FAILURE") == 0
    assert sim.diag("3") == (0, {})


def test_off_the_bus_comes_back_with_a_reboot(sim):
    sim.inject("off_bus")
    part = sim.part()
    assert part["uuid"] not in sim.page()["GPU_TEMP"]
    assert set(sim.page()["GPU_RECOVERY_ACTION"].values()) == {2}, "said of all that are left"
    lines = sim.kernel()
    assert any(": 79, GPU has fallen off the bus" in line for line in lines)
    assert any("NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus" in line for line in lines)
    listed = sim.run("nvidia-smi", "-L")
    assert listed.code == 0
    assert "Unable to determine the device handle for gpu 0000:5D:00.0" in listed.out
    assert "GPU 4:" in listed.out
    query = sim.run("nvidia-smi", "-q", "-x")
    assert query.code == 15
    assert "GPU is lost" in query.out
    code, errors = sim.diag("1")
    assert code == 205
    assert errors[3] == [120]
    assert sim.reset().code == 15
    sim.reboot()
    assert part["uuid"] in sim.page()["GPU_TEMP"]
    assert sim.diag("2") == (0, {})


def test_a_dead_gpu_is_silently_absent_after_a_reboot(sim):
    sim.inject("off_bus_dead")
    sim.reboot()
    assert len(sim.page()["GPU_TEMP"]) == 7
    listed = sim.run("nvidia-smi", "-L").out.splitlines()
    assert [line.split(":")[0] for line in listed] == [f"GPU {i}" for i in range(7)]
    assert sim.diag("1") == (0, {}), "what is left is fine: only the count tells"
    assert len([line for line in sim.kernel() if ": 79, " in line]) == 1
    assert sim.post("/technician/replace", node="n001", slot="gpu3").status_code == 200
    assert len(sim.page()["GPU_TEMP"]) == 8
    assert sim.faults() == []


def test_marginal_memory_is_missed_once_by_the_short_test_and_then_found(sim):
    sim.inject("marginal_memory")
    sim.until(lambda: sim.metric("ECC_SBE_VOL_TOTAL") > 100)
    assert sim.diag("memory") == (0, {})
    assert sim.diag("memory") == (205, {3: [52]})
    sim.reset()
    assert sim.diag("memory") == (205, {3: [52]}), "a reset changes nothing"
    sim.post("/technician/replace", node="n001", slot="gpu3")
    assert sim.diag("memory") == (0, {})
    assert sim.diag("memory") == (0, {})
    assert sim.metric("ECC_SBE_VOL_TOTAL") == 0


def test_a_long_memory_test_finds_marginal_memory_at_once(sim):
    sim.inject("marginal_memory")
    assert sim.diag("memtest")[1] == {3: [52]}


def test_a_slow_gpu_shows_only_under_load_and_without_a_code(busy):
    sim = busy
    slot = sim.get("/scheduler/nodes/n001").json()["jobs"][0]["gpus"][0]
    before = sim.metric("SM_CLOCK", slot=slot)
    sim.inject("slow_gpu", slot=slot)
    after = sim.metric("SM_CLOCK", slot=slot)
    assert 0.7 < after / before < 0.8
    assert sim.metric("XID_ERRORS", slot=slot) == 0
    assert not any("Xid" in line for line in sim.kernel())
    sim.post("/scheduler/nodes/n001/drain", mark="m", reason="")
    sim.post("/scheduler/nodes/n001/evict", mark="m", reason="")
    assert sim.metric("SM_CLOCK", slot=slot) == 345
    assert sim.diag("memory,pcie") == (0, {})
    code, errors = sim.diag("diagnostic,targeted_stress")
    assert (code, errors) == (226, {int(slot[3:]): [110, 50]})
    sim.reset(slot=slot)
    assert sim.diag("diagnostic")[0] == 226


def test_a_reboot_cures_about_half_of_the_slow_gpus(make):
    sim = make(nodes=32)
    names = [f"n{i:03d}" for i in range(1, 33)]
    for name in names:
        sim.inject("slow_gpu", node=name)
        sim.run("systemctl", "reboot", node=name)
    sim.until(lambda: all(sim.boot_id(name) for name in names))
    assert 8 <= len(sim.log("fault_cured", by="reboot")) <= 24


def test_overheating_slows_the_clock_and_ends_with_cleaning(busy):
    sim = busy
    slot = sim.get("/scheduler/nodes/n001").json()["jobs"][0]["gpus"][0]
    sim.inject("thermal", slot=slot)
    assert sim.metric("GPU_TEMP", slot=slot) >= 88
    assert int(sim.metric("CLOCKS_EVENT_REASONS", slot=slot)) & 0x48 == 0x48
    assert sim.metric("SM_CLOCK", slot=slot) < 1500
    sim.post("/scheduler/nodes/n001/drain", mark="m", reason="")
    sim.post("/scheduler/nodes/n001/evict", mark="m", reason="")
    assert sim.metric("GPU_TEMP", slot=slot) < 60
    assert 10 in sim.diag("targeted_power")[1][int(slot[3:])]
    sim.post("/technician/work", node="n001", slot=slot, work="reseated")
    assert sim.faults() == ["thermal"]
    sim.post("/technician/work", node="n001", slot=slot, work="cleaned")
    assert sim.faults() == []
    assert sim.diag("targeted_power") == (0, {})


def test_a_link_that_is_down_is_trained_again_by_a_reset(sim):
    sim.inject("nvlink_down")
    assert sim.run("nvidia-smi", "nvlink", "-s").out.count("<inactive>") == 1
    first = sim.metric("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL")
    sim.until(lambda: sim.metric("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL") > first)
    assert any(": 74, " in line and "NVLink" in line for line in sim.kernel())
    assert 14 in sim.diag("pcie")[1][3]
    assert sim.reset().code == 0
    assert "<inactive>" not in sim.run("nvidia-smi", "nvlink", "-s").out
    assert sim.diag("2") == (0, {})


def test_recurring_errors_come_back_and_only_a_new_part_ends_them(sim):
    sim.inject("ecc_recurring")
    sim.reset()
    assert sim.metric("ECC_DBE_VOL_TOTAL") == 0
    assert sim.faults() == ["ecc_recurring"], "asleep, not gone"
    sim.until(lambda: sim.metric("ECC_DBE_VOL_TOTAL") == 1)
    assert len([line for line in sim.kernel() if ": 48, " in line]) == 2
    sim.post("/technician/replace", node="n001", slot="gpu3")
    assert sim.faults() == []


def test_a_memory_test_may_wake_a_recurring_error(make):
    """A first proof may pass or fail: over many parts both happen."""
    sim = make(nodes=24, time_scale=60_000.0 / 60)
    codes = set()
    for number in range(1, 25):
        sim.inject("ecc_recurring", node=f"n{number:03d}")
        sim.reset(node=f"n{number:03d}")
        codes.add(sim.diag("memory", node=f"n{number:03d}")[0])
        if codes == {0, 205}:
            break
    assert codes == {0, 205}


def test_an_application_error_leaves_the_hardware_alone(busy):
    sim = busy
    job = sim.get("/scheduler/nodes/n001").json()["jobs"][0]
    sim.inject("app_error", slot=job["gpus"][0])
    assert sim.faults() == []
    assert sim.log("job_ended", job=job["id"])[0]["state"] == "failed"
    lines = [line for line in sim.kernel() if "Xid" in line]
    assert len(lines) == 1, "the program that repeats the line is not the kernel"
    assert re.search(r": (13|31|43), pid=\d+, name=python, ", lines[0])


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_kind_can_be_injected_and_a_new_part_ends_it(make, kind):
    sim = make(nodes=1, pools=1)
    slot = "nic3" if kind is FaultKind.SLOW_LINK else "gpu3"
    sim.inject(kind, slot=slot)
    assert sim.post("/technician/replace", node="n001", slot=slot).status_code == 200
    assert sim.faults() == []
    assert sim.diag("3") == (0, {})
    assert SAYS[kind]
