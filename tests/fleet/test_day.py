"""A simulated day: 200 faults over 64 nodes, judged by the simulator's own log."""

import re
from collections import defaultdict

import pytest

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
# Which test of a diagnosis sees what the scheduler was told was the reason.
CAUGHT_BY = {
    "xid_48": {"memory"},
    "xid_64": {"memory"},
    "ecc_uncorrectable": {"memory"},
    "row_remap_pending": {"software", "memory"},
    "row_remap_failure": {"software", "memory"},
    "min:memory": {"memory"},
    "xid_79": {"software", "pcie"},
    "gpu_lost": {"software", "pcie"},
    "xid_119": {"software", "diagnostic"},
    "recovery_action": {"software"},
    "xid_154": {"software"},
    "xid_74": {"pcie"},
    "min:interconnect": {"pcie"},
    "min:performance": {"diagnostic", "targeted_stress"},
    "min:thermal": {"targeted_power", "diagnostic", "targeted_stress"},
}
TREATED = {"gpu_reset", "part_replaced", "work_done"}


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
        assert_budgets_held(log, inventory)
        returns = assert_only_proven_returns(log)
        assert returns > 60
        assert_no_person_was_needed_for_the_proof(await f.rows())


def quarantines(log):
    """(pool-independent) gate rows of repairs, withheld marks left out."""
    for row in log:
        if row["kind"] not in {"gate_closed", "gate_opened"}:
            continue
        mark = row["mark"]
        if mark.startswith("sickbay:") and not mark.startswith("sickbay:withheld"):
            yield row


def assert_budgets_held(log, inventory):
    pool_of = {n["node"]: n["pool"] for n in inventory}
    group_of = {n["node"]: n["group"] for n in inventory}
    closed_at = defaultdict(list)
    out = defaultdict(set)
    for row in quarantines(log):
        node = row["node"]
        if row["kind"] == "gate_closed":
            closed_at[pool_of[node]].append(row["wall"])
            mates = [n for n in out[pool_of[node]] if group_of[n] == group_of[node] and n != node]
            assert not mates, f"{node} was taken out beside {mates} of its group"
            out[pool_of[node]].add(node)
            assert len(out[pool_of[node]]) <= 4
        else:
            out[pool_of[node]].discard(node)
    for pool, times in closed_at.items():
        for i, end in enumerate(times):
            inside = [t for t in times[: i + 1] if t > end - WINDOW_S]
            assert len(inside) <= ALLOWANCE, f"{pool}: {len(inside)} closures in one window"


def assert_only_proven_returns(log):
    """Every opened gate follows two passing diagnoses in a row that could see its trigger."""
    runs = defaultdict(list)
    reason: dict[str, str] = {}
    returned = 0
    for row in log:
        node = row.get("node")
        if row["kind"] == "gate_closed" and row in list(quarantines([row])):
            reason[node] = row["reason"].removeprefix("hard_fail:")
        elif row["kind"] in TREATED:
            runs[node].clear()
        elif row["kind"] == "tool_run" and row["tool"] == "dcgmi" and "diag" in row["argv"]:
            runs[node].append((row["exit"] == 0, run_tests(row["argv"])))
        elif row["kind"] == "gate_opened" and row in list(quarantines([row])):
            last = runs[node][-2:]
            assert len(last) == 2, f"{node} returned after {len(last)} runs"
            assert all(ok for ok, _ in last), f"{node} returned after a failing run"
            wanted = CAUGHT_BY[reason[node]]
            assert all(tests & wanted for _, tests in last), (node, reason[node], last)
            returned += 1
    return returned


def run_tests(argv):
    names = argv[argv.index("-r") + 1]
    if re.fullmatch(r"\d", names):
        level = int(names)
        tests = {"software"}
        if level >= 2:
            tests |= {"memory", "pcie"}
        if level >= 3:
            tests |= {"diagnostic", "targeted_stress", "targeted_power"}
        return tests
    return set(names.split(","))


def assert_no_person_was_needed_for_the_proof(rows):
    assert all(r.gate_open for r in rows.values()), [n for n, r in rows.items() if not r.gate_open]
