"""The page of the class file: each key is a key, and each floor on it does judge."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from sickbay.domain.reading import Verdict
from sickbay.readers import registry
from sickbay.readers.expectation import Expectation

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "class-file.md").read_text("utf-8")
KEYS, FLOORS = PAGE.split("## Floors")[0], PAGE.split("## Floors")[1].split("## Measurements")[0]
NCCL = (
    "# Collective test starting: all_reduce_perf\n"
    "  1073741824  268435456  float  sum  -1  9  99.0  186.0  0  9  99.0  185.0  0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 185.5\n"
    "# Collective test concluded: all_reduce_perf\n"
)
MATRIX = "Running {}.\nmemcpy CE {}(row) -> GPU(column) bandwidth (GB/s)\n 0 1\n0 N/A 50.00\n{}"
SECOND = "1 50.00 N/A\n"
LINK = (
    "  RDMA_Write BW Test\n Device : mlx5_0\n #bytes #iterations BW average[Gb/sec]\n"
    " 65536 5000 196.0\n" + "-" * 40 + "\n"
)
DISK = json.dumps({"jobs": [{"error": 0, "read": {"iops": 10.0, "bw_bytes": 99}}]}) + "\n"
OUTPUTS = {
    "nccl_<collective>_busbw_gbps": ("nccl-tests", NCCL),
    "nccl_busbw_gbps": ("nccl-tests", NCCL),
    "nvbandwidth_<test>_gbps": ("nvbandwidth", MATRIX.format("device_local_copy", "CPU", "")),
    "h2d_gbps": ("nvbandwidth", MATRIX.format("host_to_device_memcpy_ce", "CPU", "")),
    "d2h_gbps": ("nvbandwidth", MATRIX.format("device_to_host_memcpy_ce", "CPU", "")),
    "p2p_gbps": ("nvbandwidth", MATRIX.format("device_to_device_memcpy_read_ce", "GPU", SECOND)),
    "ib_<verb>_bw_gbps": ("perftest", LINK),
    "ib_bw_gbps": ("perftest", LINK),
    "fio_<direction>_iops": ("fio", DISK),
    "fio_<direction>_bytes_per_s": ("fio", DISK),
}
FILLED = {"collective": "all_reduce", "test": "device_local_copy", "verb": "write",
          "direction": "read"}  # fmt: skip


def test_the_page_has_every_key_of_a_class():
    listed = set(re.findall(r"^\| `(\w+)` \|", KEYS, flags=re.MULTILINE))
    assert listed == {field.name for field in dataclasses.fields(Expectation)}


def test_the_page_has_every_floor_that_is_tried_here():
    assert set(re.findall(r"^\| `([^`]+)` \|", FLOORS, flags=re.MULTILINE)) == set(OUTPUTS)


@pytest.mark.parametrize("key", OUTPUTS)
def test_a_floor_of_the_page_fails_what_is_below_it_and_nothing_else(key):
    tool, text = OUTPUTS[key]
    name = re.sub(r"<(\w+)>", lambda m: FILLED[m[1]], key)
    judged = [
        registry.read(tool, text, exit_code=0, expect=Expectation(floors={name: floor})).verdict
        for floor in (1.0, 1e6)
    ]
    assert judged == [Verdict.PASS, Verdict.FAIL]
