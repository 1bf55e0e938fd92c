"""A real simulator process on an ephemeral port, and its fake tools as real processes."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from sickbay.simulator.config import FaultPlan, JobLoad, SimulatorConfig

READY_S = 15.0
# A simulated minute is about 17 ms.
FAST = 3600.0


@dataclass
class Ran:
    code: int
    out: str

    def json(self) -> Any:
        return json.loads(self.out)

    def xml(self) -> ET.Element:
        return ET.fromstring(self.out)  # noqa: S314 - our own fake tool wrote it


@dataclass
class Sim:
    config: SimulatorConfig
    process: subprocess.Popen[bytes] | None = None
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=10.0))
    base: str = ""
    bmc_url: str = ""
    password: str = ""

    def start(self) -> None:
        file = self.config.dir / "config.json"
        self.config.dir.mkdir(parents=True, exist_ok=True)
        self.config.save(file)
        ready = self.config.dir / "simulator.json"
        ready.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "sickbay.simulator", "--config", str(file)]
        with (self.config.dir / "out").open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)
        ends = time.monotonic() + READY_S
        while time.monotonic() < ends and not ready.exists():
            assert self.process.poll() is None, (self.config.dir / "out").read_text()
            time.sleep(0.02)
        said = json.loads(ready.read_text())
        self.base, self.bmc_url = said["base_url"], said["bmc_url"]
        self.password = Path(said["bmc_password_file"]).read_text().strip()
        assert self.http.get(f"{self.base}/ready").status_code == 200

    def redfish(self, path: str, *, method: str = "GET", **more: Any) -> httpx.Response:
        more.setdefault("auth", (self.config.bmc_user, self.password))
        return self.http.request(method, f"{self.bmc_url}/redfish/v1{path}", **more)

    def power(self, kind: str, node: str = "n001") -> httpx.Response:
        return self.redfish(
            f"/Systems/{node}/Actions/ComputerSystem.Reset",
            method="POST",
            json={"ResetType": kind},
        )

    def system(self, node: str = "n001") -> dict[str, Any]:
        answer = self.redfish(f"/Systems/{node}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def power_state(self, node: str = "n001") -> str:
        return str(self.system(node)["PowerState"])

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=10)
        self.process = None
        return code

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.http.get(self.base + path, **more)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(self.base + path, json=body)

    def log(self, kind: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        rows = self.get("/log").json()
        return [
            row
            for row in rows
            if (kind is None or row["kind"] == kind)
            and all(row.get(k) == v for k, v in fields.items())
        ]

    def inject(self, kind: str, node: str = "n001", slot: str = "gpu3") -> None:
        answer = self.post("/faults", node=node, kind=kind, slot=slot)
        assert answer.status_code == 200, answer.text

    def faults(self, node: str = "n001") -> list[str]:
        return [f["kind"] for f in self.get("/truth").json()["faults"] if f["node"] == node]

    def page(self, node: str = "n001") -> dict[str, dict[str, float]]:
        """Values by metric and GPU uuid."""
        answer = self.get(f"/nodes/{node}/metrics")
        assert answer.status_code == 200
        values: dict[str, dict[str, float]] = {}
        for line in answer.text.splitlines():
            if not line.startswith("#"):
                name, rest = line.split("{", 1)
                uuid = rest.split('UUID="', 1)[1].split('"', 1)[0]
                values.setdefault(name.removeprefix("DCGM_FI_DEV_"), {})[uuid] = float(
                    rest.rsplit(" ", 1)[1]
                )
        return values

    def metric(self, name: str, node: str = "n001", slot: str = "gpu3") -> float:
        return self.page(node)[name][self.part(node, slot)["uuid"]]

    def part(self, node: str = "n001", slot: str = "gpu3") -> dict[str, str]:
        nodes = {n["node"]: n for n in self.get("/inventory").json()["nodes"]}
        return next(p for p in nodes[node]["parts"] if p["slot"] == slot)

    def kernel(self, node: str = "n001") -> list[str]:
        answer = self.get(
            f"/nodes/{node}/entries",
            headers={"Accept": "application/json"},
            params={"_TRANSPORT": "kernel"},
        )
        return [json.loads(line)["MESSAGE"] for line in answer.text.splitlines()]

    def run(self, *argv: str, node: str = "n001") -> Ran:
        env = {
            "PATH": f"{self.config.dir / 'bin'}:{os.environ['PATH']}",
            "SICKBAY_SIM_NODE": node,
            "SICKBAY_SIM_SOCKET": str(self.config.dir / "tools.sock"),
        }
        done = subprocess.run(argv, env=env, capture_output=True, timeout=30, check=False)
        assert done.stderr == b"", done.stderr.decode()
        return Ran(done.returncode, done.stdout.decode())

    def diag(self, tests: str, node: str = "n001") -> tuple[int, dict[int, list[int]]]:
        """Exit status, and error ids by GPU index, of either layout."""
        ran = self.run("dcgmi", "diag", "-r", tests, "-j", node=node)
        found: dict[int, list[int]] = {}
        root = next(iter(ran.json().values()))
        for category in root["test_categories"]:
            for test in category["tests"]:
                for row in test["results"]:
                    for warning in row.get("warnings", []):
                        index = int(row.get("entity_id", row.get("gpu_ids", -1)))
                        found.setdefault(index, []).append(warning["error_id"])
        return ran.code, found

    def reset(self, node: str = "n001", slot: str = "gpu3") -> Ran:
        return self.run(
            "nvidia-smi", "--gpu-reset", "-i", self.part(node, slot)["bus_id"], node=node
        )

    def reboot(self, node: str = "n001") -> None:
        before = self.boot_id(node)
        assert self.run("systemctl", "reboot", node=node).code == 0
        self.until(lambda: self.boot_id(node) not in ("", before))

    def boot_id(self, node: str = "n001") -> str:
        path = self.config.dir / "nodes" / node / "boot_id"
        return path.read_text().strip() if path.exists() else ""

    def until(self, true: Callable[[], object], seconds: float = 10.0) -> None:
        ends = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < ends, "it never came"
            time.sleep(0.02)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Sim]]:
    """Start simulators; every one still running at the end is ended."""
    started: list[Sim] = []

    def build(name: str = "sim", busy: float = 0.0, **fields: Any) -> Sim:
        fields.setdefault("jobs", JobLoad(busy=busy, median_h=5000.0, sigma=0.0))
        fields.setdefault("time_scale", FAST)
        fields.setdefault("nodes", 4)
        fields.setdefault("pools", 2)
        fields.setdefault("dcgm3_share", 0.0)
        fields.setdefault("bmc_tls", False)
        sim = Sim(SimulatorConfig(dir=tmp_path / name, **fields))
        started.append(sim)
        sim.start()
        return sim

    yield build
    for sim in started:
        sim.http.close()
        if sim.process is not None:
            sim.end()


@pytest.fixture
def sim(make: Callable[..., Sim]) -> Sim:
    """Four idle nodes, DCGM 4, no planned fault."""
    return make()


@pytest.fixture
def busy(make: Callable[..., Sim]) -> Sim:
    """Four nodes, each with a job that does not end."""
    return make(busy=1.0)


def plan(**fields: Any) -> FaultPlan:
    return FaultPlan(**fields)
