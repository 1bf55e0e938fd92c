"""The readers of benchmarks, links, disks and boards, held to what a node class should have.

Each says which of the expectations its tool can show; the others do not concern it.
"""

from sickbay.domain.reading import Reading
from sickbay.readers import (
    fio,
    firmware,
    gpu_burn,
    ibstat,
    infiniband,
    ipmi_sel,
    nccl_tests,
    nvbandwidth,
    perftest,
    redfish,
    superbench,
)
from sickbay.readers.expectation import Expectation


def read_nccl_tests(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """A run of nccl-tests against the floors and the GPUs per host."""
    return nccl_tests.read(
        text, exit_code=exit_code, floors=expect.floors, gpus_per_host=expect.gpu_count
    )


def read_nvbandwidth(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """A run of nvbandwidth against the floors and the number of GPUs."""
    return nvbandwidth.read(text, exit_code=exit_code, floors=expect.floors, gpus=expect.gpu_count)


def read_fio(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """A run of fio against the floors."""
    return fio.read(text, exit_code=exit_code, floors=expect.floors)


def read_infiniband(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """Ports in the kernel's files against their number and rate."""
    return infiniband.read(
        text, exit_code=exit_code, ports=expect.ib_ports, rate_gbps=expect.ib_rate_gbps
    )


def read_ibstat(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """Ports in a listing against their number and rate."""
    return ibstat.read(
        text, exit_code=exit_code, ports=expect.ib_ports, rate_gbps=expect.ib_rate_gbps
    )


def read_perftest(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """A run of perftest against the floors."""
    return perftest.read(text, exit_code=exit_code, floors=expect.floors)


def read_ipmi_sel(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """The event log; no expectation concerns it."""
    del expect
    return ipmi_sel.read(text, exit_code=exit_code)


def read_redfish(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """Redfish; no expectation concerns it."""
    del expect
    return redfish.read(text, exit_code=exit_code)


def read_firmware(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """Firmware tools; no expectation concerns them."""
    del expect
    return firmware.read(text, exit_code=exit_code)


def read_gpu_burn(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """A burn against the number of GPUs."""
    return gpu_burn.read(text, exit_code=exit_code, gpus=expect.gpu_count)


def read_superbench(text: str, *, exit_code: int | None, expect: Expectation) -> Reading:
    """SuperBench against the floors."""
    return superbench.read(text, exit_code=exit_code, floors=expect.floors)
