"""perftest: units, floors, errors and tables that do not end."""

import pytest

from sickbay.domain.reading import Verdict
from sickbay.readers import perftest

RULE = "-" * 87 + "\n"
HEAD = (
    RULE + "                    RDMA_Write BW Test\n"
    " Dual-port       : OFF\t\tDevice         : mlx5_4\n Number of qps   : 1\n Link type : IB\n"
    + RULE
)
GBITS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
BYTES = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
ROW = " 65536      5000             {}             {} \t\t   0.374416\n"


def read(text, *, exit_code=None, **asked):
    return perftest.read(text, exit_code=exit_code, **asked)


def values(reading, name):
    return [
        (m.part, m.size_bytes, pytest.approx(m.value))
        for m in reading.measurements
        if m.name == name
    ]


def reasons(reading):
    return {f.reason for f in reading.findings}


def test_bits_are_taken_as_printed_and_bytes_are_turned_into_bits():
    bits = read(HEAD + GBITS + ROW.format(0.0, 196.3) + RULE)
    assert bits.verdict is Verdict.PASS
    assert values(bits, "bw_average_gbps") == [("mlx5_4", 65536, 196.3)]
    assert values(bits, "bw_peak_gbps") == []
    mib = read(HEAD + BYTES + ROW.format(0, 23400.0) + RULE)
    assert values(mib, "bw_average_gbps") == [("mlx5_4", 65536, 23400 * 8 * 1.048576 / 1000)]


@pytest.mark.parametrize(
    ("floors", "verdict"),
    [
        ({}, Verdict.PASS),
        ({"ib_write_bw_gbps": 180}, Verdict.PASS),
        ({"ib_bw_gbps": 380}, Verdict.FAIL),
        ({"ib_read_bw_gbps": 380}, Verdict.PASS),
    ],
)
def test_the_best_average_is_held_against_the_floor_of_the_verb(floors, verdict):
    assert read(HEAD + GBITS + ROW.format(196.5, 196.3) + RULE, floors=floors).verdict is verdict


def test_small_messages_are_not_judged():
    row = ROW.format(1.1, 1.0).replace("65536", "   64")
    reading = read(HEAD + GBITS + row + RULE, floors={"ib_bw_gbps": 180})
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {"sizes_too_small"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (" Port number 1 state is Down", "port_not_active"),
        ("IB device mlx5_9 not found", "device_not_found"),
        ("Completion with error at client", "ib_transfer_failed"),
        (" Couldn't connect to n2:18515", "peer_unreachable"),
        ("Couldn't allocate MR", "tool_error"),
    ],
)
def test_a_run_that_broke_accuses_nobody(line, reason):
    reading = read(HEAD + line + "\n", exit_code=1)
    assert (reading.verdict, reasons(reading)) == (Verdict.INCONCLUSIVE, {reason})


def test_a_table_that_does_not_end_is_no_verdict():
    assert reasons(read(HEAD + GBITS + ROW.format(196.5, 196.3))) == {"incomplete"}
    assert reasons(read(HEAD + GBITS)) == {"did_not_run"}
    assert reasons(read(HEAD + GBITS + ROW.format(9, "nan") + RULE)) == {"not_measured"}


def test_latencies_are_measured_in_their_unit():
    text = HEAD.replace("Write BW", "Write Latency")
    text += " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n"
    reading = read(
        text + " 2       1000          1.10           4.20         1.15     \t       1.16\n" + RULE
    )
    assert reading.verdict is Verdict.PASS
    assert values(reading, "t_avg_usec") == [("mlx5_4", 2, 1.16)]
