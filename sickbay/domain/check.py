"""Names of the checks, and one check as it is asked for."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class CheckName(StrEnum):
    """One active test of a node."""

    GPU_STATE = "gpu_state"
    NVLINK_STATE = "nvlink_state"
    INFINIBAND = "infiniband"
    HOST = "host"
    DCGM_HEALTH = "dcgm_health"
    DCGM_DIAG = "dcgm_diag"
    NVBANDWIDTH = "nvbandwidth"
    STORAGE = "storage"
    NCCL_NODE = "nccl_node"
    NCCL_PAIR = "nccl_pair"
    KERNEL_LOG = "kernel_log"


@dataclass(frozen=True)
class Check:
    """One test and, for DCGM, which of its tests to run (names of DCGM 4).

    `since` is when the suite began, set where it runs: what is older was not provoked by it.
    """

    name: CheckName
    tests: tuple[str, ...] = ()
    since: datetime | None = None

    @property
    def label(self) -> str:
        """How people and evidence name it, e.g. `dcgm_diag:memory+pcie`."""
        return f"{self.name}:{'+'.join(self.tests)}" if self.tests else str(self.name)
