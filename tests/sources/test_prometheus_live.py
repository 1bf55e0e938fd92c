"""A real Prometheus between the exporters and the scorer."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from sickbay.adapters.prometheus import PrometheusPages, Queries
from sickbay.domain.node import Node, Part, PartKind
from sickbay.domain.signal import NodeReadings
from sickbay.errors import Unreachable
from sickbay.readers.exposition import PageReader
from sickbay.rules import read_rules
from sickbay.scoring.pool import PoolScorer
from sickbay.scoring.ruleset import load_ruleset

pytestmark = [pytest.mark.parts, pytest.mark.slow, pytest.mark.timeout(90)]

RULES = load_ruleset(read_rules(None))
NAMES = ["n001", "n002", "n003"]
REPLAYS = next(
    i for i, r in enumerate(RULES.signals) if "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" in r.metrics
)


def on_record(exporters) -> list[Node]:
    return [
        Node(
            node.name, node.pool, node.group, node.rack, node.node_class,
            tuple(Part(g.slot, PartKind.GPU, g.uuid, g.serial) for g in node.gpus),
        )
        for node in exporters.nodes.values()
    ]  # fmt: skip


class Loop:
    """The scorer with Prometheus as its source, ticked by a test."""

    def __init__(self, url: str, exporters, *, http: httpx.AsyncClient, stale_after_s=10.0) -> None:
        self.pages = PrometheusPages(
            Queries(url, client=http), metrics=RULES.metric_names(), stale_after_s=stale_after_s
        )
        self.reader = PageReader(RULES.metric_names())
        self.scorer = PoolScorer(RULES, times=RULES.times)
        self.scorer.set_nodes(on_record(exporters))

    def absorb(self, pages, *, at: datetime) -> None:
        readings = [
            NodeReadings(
                p.node, at, None if p.text is None else self.reader.read(p.text), error=p.error
            )
            for p in pages
        ]
        self.scorer.absorb(readings, now=at)

    async def tick(self, *, later_s: float = 0.0) -> dict:
        at = datetime.now(UTC) + timedelta(seconds=later_s)
        self.absorb(await self.pages.read(NAMES), at=at)
        return {c.node: c for c in self.scorer.evaluate(now=at, held=())}

    def rates(self, node: str) -> list[float]:
        columns = self.scorer._columns
        at = columns.counter_at.index(REPLAYS)
        rows = [i for i, row in enumerate(columns.rows) if row.node == node]
        return columns.counters.rates()[rows, at].tolist()


@pytest.fixture
async def http():
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


async def seen(loop: Loop, *, nodes=NAMES) -> None:
    """Wait until Prometheus has scraped these nodes."""
    for _ in range(60):
        pages = {p.node: p for p in await loop.pages.read(NAMES)}
        if all(pages[n].text for n in nodes):
            return
        await asyncio.sleep(0.25)
    pytest.fail(str(pages))


async def silent(loop: Loop, node: str) -> str:
    """Wait until a node has no page; the reason."""
    for _ in range(60):
        page = {p.node: p for p in await loop.pages.read(NAMES)}[node]
        if page.text is None:
            return page.error
        await asyncio.sleep(0.25)
    return pytest.fail(f"{node} still has a page")


async def test_every_gpu_is_on_the_page_of_its_node_with_its_numbers(prometheus, exporters, http):
    loop = Loop(prometheus.url, exporters, http=http)
    await seen(loop)
    exporters.gpu("n002", 3).heat_c = 30.0
    await asyncio.sleep(2.5)
    pages = {p.node: loop.reader.read(p.text) for p in await loop.pages.read(NAMES)}
    for name, node in exporters.nodes.items():
        assert {p.uuid for p in pages[name]} == {g.uuid for g in node.gpus}
        assert all(p.bus_id for p in pages[name])
    temp = {p.index: p.values["DCGM_FI_DEV_GPU_TEMP"] for p in pages["n002"]}
    assert temp["3"] > max(v for k, v in temp.items() if k != "3") + 20


async def test_a_counter_becomes_a_rate_and_its_reset_none(prometheus, exporters, http):
    loop = Loop(prometheus.url, exporters, http=http)
    gpu = exporters.gpu("n001", 0)
    await seen(loop)
    await loop.tick()
    gpu.replays.add(600, now_h=exporters.now_h)
    await asyncio.sleep(2.5)
    await loop.tick(later_s=60)
    rates = loop.rates("n001")
    assert rates[0] == pytest.approx(600 / 62.5, rel=0.1)
    assert rates[1] == 0.0
    before = rates[0]
    gpu.replays.add(-590, now_h=exporters.now_h)
    await asyncio.sleep(2.5)
    await loop.tick(later_s=75)
    assert loop.rates("n001")[0] == pytest.approx(before)


async def test_a_dead_exporter_is_silent_at_once_and_unknown_after_a_minute_never_worse(
    prometheus, exporters, http
):
    loop = Loop(prometheus.url, exporters, http=http)
    await seen(loop)
    assert all(c.health.value == 1.0 for c in (await loop.tick()).values())
    exporters.dead.add("n002")
    assert "up is 0" in await silent(loop, "n002")
    changes = await loop.tick(later_s=70)
    assert changes["n002"].health.value is None
    assert not changes["n002"].findings
    assert "up is 0" in changes["n002"].health.detail
    assert "n001" not in changes


async def test_an_exporter_without_gpus_is_no_fleet_of_lost_gpus(prometheus, exporters, http):
    loop = Loop(prometheus.url, exporters, http=http)
    await seen(loop)
    await loop.tick()
    exporters.empty.add("n003")
    assert "speaks of no GPU" in await silent(loop, "n003")
    for later_s in (15, 30, 45, 70):
        changes = await loop.tick(later_s=later_s)
        assert all(not c.findings for c in changes.values())
    assert changes["n003"].health.value is None


async def test_a_gpu_that_leaves_the_page_is_lost(prometheus, exporters, http):
    loop = Loop(prometheus.url, exporters, http=http)
    await seen(loop)
    await loop.tick()
    exporters.gpu("n001", 5).answers = False
    await asyncio.sleep(2.5)
    found = []
    # Beyond the grace after which a part that was never seen since a boot is missed.
    for later_s in (315, 330, 345):
        await asyncio.sleep(1.5)
        changes = await loop.tick(later_s=later_s)
        found += [f.slot for c in changes.values() for f in c.findings]
    assert found == ["gpu5"]


async def test_a_frozen_exporter_is_scraped_and_unknown_all_the_same(prometheus, exporters, http):
    loop = Loop(prometheus.url, exporters, http=http)
    await seen(loop)
    exporters.freeze("n002")
    await asyncio.sleep(2.5)
    await loop.tick()
    await asyncio.sleep(2.5)
    changes = await loop.tick(later_s=70)
    assert {n: c.health.value for n, c in changes.items()}.get("n002", 1.0) is None
    assert "n001" not in changes


async def test_a_node_prometheus_never_heard_of(prometheus, exporters, http):
    loop = Loop(prometheus.url, exporters, http=http)
    await seen(loop)
    (page,) = await loop.pages.read(["n999"])
    assert (page.text, page.error) == (None, "no target of prometheus names this node")


async def test_samples_prometheus_no_longer_renews_are_no_numbers(prometheus, exporters, http):
    """Nothing marks them stale when Prometheus itself is what stopped: only their age tells."""
    loop = Loop(prometheus.url, exporters, http=http, stale_after_s=4.0)
    await seen(loop)
    prometheus.stop()
    (down, *_) = await loop.pages.read(NAMES)
    assert down.text is None
    assert down.error.startswith("prometheus: Connect")
    # It comes back without a target, and answers with what it has: up to five minutes old.
    path = prometheus.directory / "prometheus.yml"
    path.write_text("global: {scrape_interval: 1s}\n")
    await prometheus.start()
    await asyncio.sleep(5)
    pages = await loop.pages.read(NAMES)
    assert [p.text for p in pages] == [None] * 3
    assert all("s old" in p.error for p in pages)


async def test_the_windows_are_rebuilt_after_a_restart(prometheus, exporters, http):
    before = Loop(prometheus.url, exporters, http=http)
    await seen(before)
    gpu = exporters.gpu("n001", 0)
    for _ in range(6):
        gpu.replays.add(100, now_h=exporters.now_h)
        await asyncio.sleep(1)
    exporters.freeze("n003")
    await asyncio.sleep(4)
    after = Loop(prometheus.url, exporters, http=http)
    now = datetime.now(UTC)
    past = await after.pages.read_window(NAMES, window_s=20, step_s=1, now=now)
    moments = [at for at, _ in past]
    assert moments == sorted(moments)
    assert now - timedelta(seconds=20.5) <= moments[0]
    assert moments[-1] <= now
    for at, pages in past:
        after.absorb(pages, at=at)
    assert after.rates("n001")[0] > 10
    assert after.rates("n002") == [0.0] * 8
    await after.tick()
    # A reading that did not move during the window is known not to move: no fresh start for it.
    fresh = after.scorer._columns.fresh_at
    assert fresh[2] < fresh[0] - 2


async def test_a_restart_against_a_prometheus_that_is_down_says_so(exporters, http):
    loop = Loop("http://127.0.0.1:9", exporters, http=http)
    with pytest.raises(Unreachable, match="prometheus"):
        await loop.pages.read_window(NAMES, window_s=20, step_s=1, now=datetime.now(UTC))
