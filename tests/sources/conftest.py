"""A real Prometheus scraping the simulator's own pages, and pages one can break."""

import asyncio
import json
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sickbay.simulator.config import SimulatorConfig
from sickbay.simulator.draws import Draws
from sickbay.simulator.fleet import build_fleet
from sickbay.simulator.hardware import Gpu, Node
from sickbay.simulator.metrics import MetricsPages

GET_PROMETHEUS = "apt-get install prometheus, or put `prometheus` on PATH"
SCRAPE_S = 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def small_fleet(directory: Path, *, count: int) -> list[Node]:
    nodes = build_fleet(SimulatorConfig(directory, nodes=count, pools=1), draws=Draws(7))
    for node in nodes:
        for index, gpu in enumerate(node.gpus):
            gpu.index = index
            gpu.set_load(True, now_h=0.0)
    return nodes


class Exporters:
    """The pages of a few simulated nodes; a test kills, empties or freezes them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.pages = MetricsPages()
        self.dead: set[str] = set()
        self.empty: set[str] = set()
        self.frozen: dict[str, str] = {}
        self.now_h = 1.0
        self.port = free_port()

    def gpu(self, node: str, slot: int) -> Gpu:
        return self.nodes[node].gpus[slot]

    def freeze(self, node: str) -> None:
        self.frozen[node] = self.page(node)

    def page(self, name: str) -> str:
        if name in self.frozen:
            return self.frozen[name]
        return self.pages.page(self.nodes[name], revision=0, now_h=self.now_h)

    def app(self) -> Starlette:
        async def metrics(request) -> Response:
            name = request.path_params["name"]
            self.now_h += 0.001
            if name in self.dead:
                return PlainTextResponse("down", status_code=503)
            return PlainTextResponse("" if name in self.empty else self.page(name))

        async def targets(_request) -> Response:
            address = f"127.0.0.1:{self.port}"
            rows = [
                {
                    "targets": [address],
                    "labels": {"__metrics_path__": f"/nodes/{name}/metrics", "instance": name},
                }
                for name in self.nodes
            ]
            return JSONResponse(rows)

        return Starlette(routes=[Route("/nodes/{name}/metrics", metrics), Route("/sd", targets)])


class Prometheus:
    """The real server, started and killed by a test."""

    def __init__(self, binary: Path, directory: Path, exporters: Exporters) -> None:
        self.binary, self.directory, self.exporters = binary, directory, exporters
        self.port = free_port()
        self.process: subprocess.Popen | None = None
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
            "scrape_configs": [
                {
                    "job_name": "dcgm",
                    "http_sd_configs": [
                        {
                            "url": f"http://127.0.0.1:{exporters.port}/sd",
                            "refresh_interval": "1s",
                        }
                    ],
                }
            ],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        argv = [
            str(self.binary),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=error",
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        async with httpx.AsyncClient() as http:
            for _ in range(200):
                try:
                    if (await http.get(f"{self.url}/-/ready")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)
        pytest.fail((self.directory / "log").read_text()[-2000:])

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)


@pytest_asyncio.fixture
async def exporters(tmp_path):
    made = Exporters(small_fleet(tmp_path, count=3))
    server = uvicorn.Server(
        uvicorn.Config(made.app(), host="127.0.0.1", port=made.port, log_level="error")
    )
    task = asyncio.create_task(server.serve())
    for _ in range(200):
        if server.started:
            break
        await asyncio.sleep(0.02)
    yield made
    server.should_exit = True
    await task


@pytest_asyncio.fixture
async def prometheus(exporters, require_part, tmp_path):
    found = shutil.which("prometheus")
    binary = require_part(Path(found) if found else None, GET_PROMETHEUS)
    server = Prometheus(binary, tmp_path, exporters)
    await server.start()
    yield server
    server.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a real Prometheus can be deselected where none is to be had."""
    for item in items:
        if "prometheus" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.prometheus)
