"""nvbandwidth and nccl-tests, as real processes: what they print follows the hardware's state."""

import json
import re

import pytest

PAIR = ("-np", "16", "-H", "n001:8,n002:8")
SIZES = ("-b", "1G", "-e", "8G", "-f", "2", "-g", "1", "-c", "1")


def busbw(text: str) -> list[float]:
    """Out-of-place bus bandwidth per size."""
    row = re.compile(r"^ *\d+ +\d+ +float +sum +-1 +\S+ +\S+ +(\S+) +\S+ ", re.MULTILINE)
    return [float(cell) for cell in row.findall(text)]


def pair(sim, other="n002", *, node="n001"):
    ran = sim.run(
        "mpirun", "-np", "16", "-H", f"{node}:8,{other}:8", "all_reduce_perf", *SIZES, node=node
    )
    return ran, busbw(ran.out)


def matrix(sim, test, node="n001"):
    ran = sim.run("nvbandwidth", "-j", "-t", test, node=node)
    assert ran.code == 0, ran.out
    (case,) = ran.json()["nvbandwidth"]["testcases"]
    assert (case["name"], case["status"]) == (test, "Passed")
    return case["bandwidth_matrix"]


def test_a_healthy_node_reaches_what_such_nodes_reach(sim):
    ran = sim.run("all_reduce_perf", "-b", "1G", "-e", "8G", "-f", "2", "-g", "8", "-c", "1")
    assert ran.code == 0
    assert ran.out.count("# Out of bounds values : 0 OK") == 1
    assert [int(r) for r in re.findall(r"#  Rank +(\d+) .* on n001 device", ran.out)] == [*range(8)]
    assert all(460 < gbps < 485 for gbps in busbw(ran.out))


def test_two_healthy_nodes_are_bound_by_their_rails(sim):
    ran, gbps = pair(sim)
    assert ran.code == 0
    assert len(re.findall(r"on n00[12] device", ran.out)) == 16
    assert len(gbps) == 4
    assert all(360 < g < 384 for g in gbps)


@pytest.mark.parametrize("sick", ["n001", "n002"])
def test_a_slow_link_shows_in_the_pair_alone_whichever_side_has_it(sim, sick):
    sim.inject("slow_link", node=sick, slot="nic3")
    _, gbps = pair(sim)
    assert all(180 < g < 192 for g in gbps)
    alone = sim.run("all_reduce_perf", "-b", "1G", "-e", "1G", "-g", "8", node=sick)
    assert busbw(alone.out)[0] > 460
    assert sim.diag("3", node=sick) == (0, {})
    assert "<inactive>" not in sim.run("nvidia-smi", "nvlink", "-s", node=sick).out
    assert all(float(c) > 50 for c in matrix(sim, "host_to_device_memcpy_ce", sick)[0])
    assert [line for line in sim.kernel(sick) if "Xid" in line] == []
    _, others = pair(sim, "n004", node="n003")
    assert min(others) > 360


@pytest.mark.parametrize("hands", ["reseated", "cable", "replace"])
def test_hands_on_the_nic_end_a_slow_link(sim, hands):
    sim.inject("slow_link", slot="nic3")
    sim.reboot()
    assert min(pair(sim)[1]) < 192, "a reboot does not help"
    if hands == "replace":
        answer = sim.post("/technician/replace", node="n001", slot="nic3").json()
        assert answer["serial"] != answer["old_serial"]
    else:
        sim.post("/technician/work", node="n001", slot="nics", work=hands)
    assert sim.faults() == []
    assert min(pair(sim)[1]) > 360


def test_cleaning_does_not_end_a_slow_link_and_it_outlives_the_simulator(sim):
    sim.inject("slow_link", slot="nic3")
    sim.post("/technician/work", node="n001", slot="nic3", work="cleaned")
    sim.end(9)
    sim.start()
    assert sim.faults() == ["slow_link"]
    assert min(pair(sim)[1]) < 192


def test_a_nic_breaks_once_and_an_unknown_one_is_named(sim):
    sim.inject("slow_link", slot="nic3")
    assert sim.post("/faults", node="n001", kind="slow_link", slot="nic3").status_code == 409
    unknown = sim.post("/faults", node="n001", kind="slow_link", slot="nic9")
    assert (unknown.status_code, "nic7" in unknown.json()["error"]) == (404, True)


def test_a_link_down_lowers_the_copies_of_its_gpu_and_the_collective(sim):
    sim.inject("nvlink_down")
    rows = matrix(sim, "device_to_device_memcpy_read_ce")
    assert rows[3][3] == "N/A"
    slow = {float(rows[3][i]) for i in range(8) if i != 3}
    fast = {float(rows[0][i]) for i in range(1, 8) if i != 3}
    assert max(slow) < min(fast)
    ran = sim.run("all_reduce_perf", "-b", "8G", "-e", "8G", "-g", "8")
    assert busbw(ran.out)[0] < 455
    assert pair(sim)[1][0] > 360, "the rails are slower still"


def test_a_slow_gpu_lowers_the_collective(sim):
    sim.inject("slow_gpu")
    ran = sim.run("all_reduce_perf", "-b", "8G", "-e", "8G", "-g", "8")
    assert busbw(ran.out)[0] < 431


def test_one_gpu_alone_measures_no_bus(sim):
    ran = sim.run("all_reduce_perf", "-b", "32M", "-e", "32M", "-g", "1")
    assert busbw(ran.out) == [0.0]
    assert "N/A" in ran.out


@pytest.mark.parametrize(
    ("kind", "says"), [("off_bus", "unknown error"), ("gsp_hang", "unknown error")]
)
def test_a_gpu_that_does_not_answer_ends_every_run_without_a_number(sim, kind, says):
    sim.inject(kind)
    for argv in (("all_reduce_perf", "-g", "8"), ("mpirun", *PAIR, "all_reduce_perf", *SIZES)):
        ran = sim.run(*argv)
        assert ran.code != 0
        assert says in ran.out
        assert busbw(ran.out) == []
    ran = sim.run("nvbandwidth", "-j")
    assert (ran.code, "CUDA_ERROR_UNKNOWN" in ran.out, "Passed" in ran.out) == (1, True, False)


def test_seven_of_eight_gpus_run_nothing_on_eight_ranks(sim):
    sim.inject("off_bus_dead", node="n002")
    sim.reboot("n002")
    ran, gbps = pair(sim)
    assert (ran.code, gbps) == (2, [])
    assert "n002: Test CUDA failure" in ran.out


def test_a_host_that_is_down_is_no_measurement(sim):
    sim.run("systemctl", "reboot", node="n002")
    ran, gbps = pair(sim)
    assert (ran.code, gbps) == (1, [])
    assert "No route to host" in ran.out


def test_gpus_that_a_job_holds_are_busy(busy):
    for argv in (("all_reduce_perf", "-g", "8"), ("nvbandwidth",)):
        ran = busy.run(*argv)
        assert ran.code != 0
        assert "busy or unavailable" in ran.out


def test_each_run_leaves_one_row_in_the_simulators_log(sim):
    pair(sim)
    matrix(sim, "device_local_copy")
    rows = sim.log("tool_run")
    assert [(r["tool"], r["node"], r["exit"]) for r in rows] == [
        ("mpirun", "n001", 0),
        ("nvbandwidth", "n001", 0),
    ]


def test_the_text_of_nvbandwidth_has_the_numbers_of_its_json(sim):
    text = sim.run("nvbandwidth", "-t", "host_to_device_memcpy_ce").out
    assert "Running host_to_device_memcpy_ce." in text
    assert re.search(r"^Device 7: NVIDIA H200 \(00000000:DB:00\)$", text, re.MULTILINE)
    (row,) = re.findall(r"^0 +([\d. ]+)$", text, re.MULTILINE)
    assert [float(c) for c in row.split()] == [
        float(c) for c in matrix(sim, "host_to_device_memcpy_ce")[0]
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ("all_reduce_perf", "-b", "fast"),
        ("all_reduce_perf", "--magic", "1"),
        ("mpirun", "-np", "17", "-H", "n001:8,n002:8", "all_reduce_perf"),
        ("mpirun", "-np", "2", "hostname"),
        ("nvbandwidth", "-t", "teleport"),
        ("nvbandwidth", "--magic"),
    ],
)
def test_nonsense_on_the_command_line_is_refused(sim, argv):
    ran = sim.run(*argv)
    assert ran.code == 1
    assert busbw(ran.out) == []


def test_nvbandwidth_lists_a_test_it_does_not_know_as_not_found(sim):
    document = json.loads(sim.run("nvbandwidth", "-j", "-t", "teleport").out)
    assert [c["status"] for c in document["nvbandwidth"]["testcases"]] == ["Not Found"]
