"""Ports: the kernel's files, listings, pages of counters, and what each state means."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.domain.node import Category
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.readers import ibstat, infiniband


def tree(*ports, style="{}: {}\n", root="/sys/class/infiniband"):
    lines = []
    for index, said in enumerate(ports):
        fields = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
        } | said
        lines += [
            style.format(f"{root}/mlx5_{index}/ports/1/{name}", value)
            for name, value in fields.items()
            if value is not None
        ]
    return "".join(lines)


def listing(*ports):
    text = ""
    for index, said in enumerate(ports):
        fields = {
            "State": "Active",
            "Physical state": "LinkUp",
            "Rate": "400",
            "Base lid": "7",
            "Link layer": "InfiniBand",
        } | said
        text += f"CA 'mlx5_{index}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n"
        text += "".join(f"\t\t{name}: {value}\n" for name, value in fields.items())
    return text


DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X)"}
LISTED_DOWN = {"State": "Down", "Physical state": "Polling", "Rate": "10"}


def read(text, *, exit_code=None, **asked):
    module = (
        ibstat
        if text.startswith(("CA ", "Infiniband ", "hca_id", "ibpanic", "link "))
        else infiniband
    )
    return module.read(text, exit_code=exit_code, **asked)


def reasons(reading):
    return {(f.part, f.reason) for f in reading.findings}


@pytest.mark.parametrize("style", ["{}: {}\n", "{}:{}\n", "==> {} <==\n{}\n\n"])
def test_files_are_read_however_they_were_gathered(style):
    reading = read(tree({}, {}, style=style), ports=2, rate_gbps=400)
    assert reading.verdict is Verdict.PASS
    assert {(m.part, m.value) for m in reading.measurements} == {("mlx5_0", 400), ("mlx5_1", 400)}


@pytest.mark.parametrize("text", [tree({}, DOWN), listing({}, LISTED_DOWN)])
def test_a_port_that_searches_for_its_partner_is_down(text):
    reading = read(text)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.FABRIC)
    assert reasons(reading) == {("mlx5_1", "link_down")}
    assert {m.part for m in reading.measurements} == {"mlx5_0"}


@pytest.mark.parametrize(
    "text",
    [
        tree({}, {"state": "1: DOWN", "phys_state": "3: Disabled"}),
        listing({}, {"State": "Down", "Physical state": "Disabled"}),
    ],
)
def test_a_port_that_is_switched_off_is_configuration(text):
    reading = read(text)
    assert reading.verdict is Verdict.PASS
    assert [(f.reason, f.kind) for f in reading.findings] == [
        ("port_disabled", FindingKind.CONFIGURATION)
    ]
    assert read(text, ports=2).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "said",
    [
        {"State": "Initializing"},
        {"State": "Down", "Base lid": "65535"},
        {"State": "Armed", "Base lid": "0"},
    ],
)
def test_a_link_without_a_subnet_manager_is_configuration(said):
    reading = read(listing(said))
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reasons(reading) == {("mlx5_0", "no_subnet_manager")}


def test_lids_of_nought_are_normal_on_ethernet():
    assert read(listing({"Link layer": "Ethernet", "Base lid": "0"})).verdict is Verdict.PASS


def test_a_link_slower_than_its_class_has_lost_lanes_or_speed():
    slow = tree({}, {"rate": "100 Gb/sec (1X NDR)"})
    assert read(slow).verdict is Verdict.PASS
    assert reasons(read(slow, rate_gbps=400)) == {("mlx5_1", "link_rate_low")}


def test_ports_beyond_those_the_class_needs_may_be_down():
    text = tree(*[{}] * 8, *[DOWN] * 4)
    assert read(text, ports=8, rate_gbps=400).verdict is Verdict.PASS
    assert read(text, ports=9).verdict is Verdict.FAIL


def test_a_device_that_vanished_is_missed_only_by_a_class_that_expects_it():
    assert read(tree({}, {})).verdict is Verdict.PASS
    missing = read(tree({}, {}), ports=3)
    assert (missing.verdict, reasons(missing)) == (Verdict.FAIL, {(None, "port_missing")})
    gone = read("ibpanic: [77] main: stat of IB device 'mlx5_3' failed: No such file\n")
    assert (gone.verdict, reasons(gone)) == (Verdict.INCONCLUSIVE, {("mlx5_3", "device_not_found")})


def test_a_network_device_that_is_down_is_told_and_is_no_link():
    base = "/sys/bus/pci/devices/0000:8d:00.0"
    text = tree({}, root=base + "/infiniband") + f"{base}/net/ib4/operstate: down\n"
    text += f"{base}/net/ib4/carrier_changes: 98\n"
    reading = read(text)
    assert reading.verdict is Verdict.PASS
    assert reasons(reading) == {("ib4", "netdev_down")}
    assert "mlx5_0" in reading.findings[0].detail


def test_a_counter_at_its_end_is_unknown_and_history_is_no_fault():
    counters = "".join(
        f"/sys/class/infiniband/mlx5_0/ports/1/counters/{name}: {value}\n"
        for name, value in [("link_downed", 255), ("symbol_error", 12), ("port_rcv_data", 9)]
    )
    reading = read(tree({}) + counters)
    assert reading.verdict is Verdict.PASS
    assert reasons(reading) == {("mlx5_0", "counter_saturated")}
    assert ("symbol_error", 12) in {(m.name, m.value) for m in reading.measurements}


def test_one_lane_with_errors_that_leak_is_a_bad_cable():
    lanes = "".join(f"     rx_err_lane_{i}_phy: {n}\n" for i, n in enumerate([11, 900000, 0, 2]))
    text = "NIC statistics:\n     rx_crc_errors_phy: 40\n" + lanes
    reading = read(text)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.FABRIC)
    assert "lane 1" in next(f.detail for f in reading.findings if f.reason == "bad_lane")
    corrected = read(text.replace("phy: 40", "phy: 0"))
    assert corrected.verdict is Verdict.PASS


def test_a_failed_status_beside_a_note_is_no_pass():
    text = tree({}, {"state": "1: DOWN", "phys_state": "3: Disabled"})
    assert "exit_code_contradicts_document" in {f.reason for f in read(text, exit_code=1).findings}
    assert read(text, exit_code=1).verdict is Verdict.INCONCLUSIVE


def test_counters_alone_are_no_rate():
    page = "# Port counters: Lid 7 port 1\nSymbolErrorCounter:..............{}\n"
    page += "LinkDownedCounter:...............0\n"
    assert read(page.format(0)).verdict is Verdict.PASS
    errors = read(page.format(9))
    assert (errors.verdict, reasons(errors)) == (Verdict.INCONCLUSIVE, {(None, "errors_counted")})
    assert ("symbol_error", 9) in {(m.name, m.value) for m in errors.measurements}


def test_other_listings_have_the_same_meaning():
    status = (
        "Infiniband device 'mlx5_2' port 1 status:\n\tbase lid:\t 0x2a\n\tstate:\t\t 1: DOWN\n"
        "\tphys state:\t 2: Polling\n\trate:\t\t 10 Gb/sec (4X)\n\tlink_layer:\t InfiniBand\n"
    )
    assert reasons(read(status)) == {("mlx5_2", "link_down")}
    links = "link mlx5_{}/1 subnet_prefix fe80:: lid {} sm_lid 1 lmc 0 state {} physical_state {}\n"
    text = links.format(0, 3, "ACTIVE", "LINK_UP") + links.format(1, 65535, "DOWN", "DISABLED")
    assert reasons(read(text)) == {("mlx5_1", "port_disabled")}
    text += links.format(2, 9, "DOWN", "POLLING")
    assert read(text).verdict is Verdict.FAIL
    info = "hca_id:\tmlx5_0\n\tfw_ver: 28.4\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"
    assert read(info + "\t\t\tlink_layer:\t\tInfiniBand\n").verdict is Verdict.PASS


def test_c35_fewer_ports_down_than_may_be_is_no_event():
    reading = read(listing(*[{}] * 8, *[LISTED_DOWN] * 4), ports=8)
    assert reading.verdict is Verdict.PASS
    assert all(f.kind is not FindingKind.HARDWARE for f in reading.findings)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([tree(DOWN), listing(LISTED_DOWN)]), st.floats(0, 1))
def test_no_prefix_of_a_failing_output_passes(text, share):
    cut = text[: int(len(text) * share)]
    for module in (infiniband, ibstat):
        assert module.read(cut, exit_code=None).verdict is not Verdict.PASS
