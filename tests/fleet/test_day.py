"""A simulated day: 200 faults over 64 nodes, judged by the simulator's own log."""

import pytest

from sickbay.testing import judge

DAY_H = 24
SCALE = 720
ALLOWANCE = 4
WINDOW_S = 3600 / SCALE

SETTINGS = f"""
time_scale = {SCALE}

[simulator]
enabled = true
nodes = 64
pools = 4
group_size = 4
seed = 21
faults = 200
faults_start_after_h = 0.2
faults_until_h = {DAY_H}
technician = true
technician_h = 0.25

[budget]
allowance = {ALLOWANCE}
cap = 4
max_out = 4
"""


@pytest.mark.slow
@pytest.mark.timeout(540)
async def test_a_day_of_faults_returns_only_proven_nodes_within_budget(fleet):
    async with fleet(SETTINGS) as f:
        inventory = (await f.http.get("/inventory")).json()["nodes"]

        async def over() -> bool:
            rows = f.log()
            injected = sum(r["kind"] in {"fault_injected", "fault_skipped"} for r in rows)
            busy = [r for r in (await f.rows()).values() if r.stage]
            truth = (await f.http.get("/truth")).json()["faults"]
            broken = [t for t in truth if t.get("fault", t["kind"]) != "app_error"]
            return injected >= 200 and not busy and not broken

        await f.until("the day's repairs end", over, within_s=480)
        log = f.log()
        limits = {"allowance": ALLOWANCE, "window_s": WINDOW_S, "out_at_once": 4}
        assert judge.over_budget(log, inventory, **limits) == []
        returns = judge.judge_returns(log)
        assert returns.unproven == ()
        assert returns.proven > 60
        assert judge.undrained(log) == []
        assert judge.doubled(log, judge.asked_of(f.settings.state_dir)) == []
        assert_no_person_was_needed_for_the_proof(await f.rows())


def assert_no_person_was_needed_for_the_proof(rows):
    assert all(r.gate_open for r in rows.values()), [n for n, r in rows.items() if not r.gate_open]
