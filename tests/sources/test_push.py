"""Pushes: who may, what counts, what is told back, and how the scorer hears of it."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import pytest_asyncio

from sickbay.adapters.pushed_signals import WithPushes
from sickbay.dashboard.app import Limits, Parts, dashboard_app
from sickbay.domain.node import Node, Part, PartKind
from sickbay.domain.signal import KernelRecord, NodeReadings
from sickbay.errors import UsageError
from sickbay.ports import NodeSample
from sickbay.readers.exposition import PageReader
from sickbay.rules import read_rules
from sickbay.scoring.pool import PoolScorer
from sickbay.scoring.ruleset import load_ruleset
from sickbay.settings import load_settings, save_resolved
from sickbay.store.engine import open_store
from sickbay.store.pushes import StorePushes
from sickbay.store.records import StoreRecords
from workers.dashboard import push_token

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
RULES = load_ruleset(read_rules(None))
PUSHABLE = next(
    r.name for r in RULES.signals if "DCGM_FI_DEV_PCIE_LINK_WIDTH" in r.metrics
)  # fmt: skip
LIVE = next(r.name for r in RULES.signals if r.liveness)
NODES = tuple(
    Node(
        name, "pool-a", "g1", "r1", "h200x8",
        tuple(
            Part(f"gpu{i}", PartKind.GPU, f"GPU-{name}-{i}", f"S{i}", f"0000:{16 + i:02x}:00")
            for i in range(8)
        ),
    )
    for name in ("n001", "n002")
)  # fmt: skip


def signal(**more):
    base = {"id": "s1", "node": "n001", "part": "gpu0", "signal": PUSHABLE, "value": 16.0}
    return {**base, "at": NOW.isoformat(), **more}


def xid(code=79, **more):
    base = {"id": "e1", "node": "n001", "kind": "xid", "part": "gpu3", "xid": code}
    return {**base, "at": NOW.isoformat(), **more}


@pytest_asyncio.fixture
async def store(tmp_path):
    opened = await open_store(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")
    await StoreRecords(opened).sync_inventory(NODES)
    yield opened
    await opened.close()


@pytest.fixture
def client_of(store):
    def make(*, token=None, headers=None, base="http://127.0.0.1", **limits):
        async def nodes():
            return NODES

        async def rules():
            return RULES

        async def page():
            return "page\n"

        app = dashboard_app(
            Parts(
                StorePushes(store), nodes, rules, page, lambda: NOW, token, Limits(**limits)
            )
        )  # fmt: skip
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base, headers=headers)

    return make


async def test_a_reading_and_an_event_are_accepted_once(client_of, store):
    async with client_of() as http:
        for expected in ({"accepted": 2, "repeated": 0}, {"accepted": 0, "repeated": 2}):
            answer = await http.post("/v1/batch", json={"signals": [signal()], "events": [xid()]})
            assert answer.status_code == 200
            assert answer.json() == {**expected, "errors": []}
    inbox = StorePushes(store)
    (event,) = await inbox.events_since(["n001"], received_after=NOW - timedelta(hours=1))
    assert event.message.startswith("NVRM: Xid (PCI:0000:13:00): 79")
    (reading,) = await inbox.signals_of(["n001"], taken_after=NOW - timedelta(hours=1))
    assert (reading.part, reading.value) == ("GPU-n001-0", 16.0)


async def test_an_older_reading_never_replaces_a_newer(client_of, store):
    async with client_of() as http:
        await http.post("/v1/signals", json=signal(id="new", value=8.0))
        late = signal(id="old", value=16.0, at=(NOW - timedelta(seconds=30)).isoformat())
        assert (await http.post("/v1/signals", json=late)).json()["accepted"] == 0
    (kept,) = await StorePushes(store).signals_of(["n001"], taken_after=NOW - timedelta(hours=1))
    assert kept.value == 8.0


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (signal(node="n999"), "node"),
        (signal(part="gpu9"), "part"),
        (signal(signal="heat_of_the_moon"), "signal"),
        (signal(signal=LIVE), "signal"),
        (signal(value="16"), "value"),
        (signal(value=True), "value"),
        (signal(at="yesterday"), "at"),
        (signal(at="2026-12-01T12:00:00"), "at"),
        (signal(at=(NOW + timedelta(hours=1)).isoformat()), "at"),
        (signal(at=(NOW - timedelta(days=2)).isoformat()), "at"),
        (signal(id=""), "id"),
        (signal(colour="red"), "colour"),
        (signal(labels={"a": "x" * 999}), "labels.a"),
        (3, ""),
        (None, ""),
    ],
)
async def test_a_wrong_item_is_told_back_and_the_others_count(client_of, item, field):
    async with client_of() as http:
        answer = await http.post("/v1/signals", json=[item, signal(id="good", part="gpu1")])
    assert answer.status_code == 200
    assert answer.json()["accepted"] == 1
    (error,) = answer.json()["errors"]
    assert (error["list"], error["index"], error["field"]) == ("signals", 0, field)
    assert error["message"]


@pytest.mark.parametrize(
    "item",
    [xid(part=""), xid(xid=None), xid(xid=-1), xid(kind="rumour"), {**xid(), "kind": "kernel"}],
)
async def test_an_event_that_says_nothing_is_refused(client_of, item):
    async with client_of() as http:
        answer = await http.post("/v1/events", json=item)
    assert answer.status_code == 422
    assert answer.json()["accepted"] == 0
    assert len(answer.json()["errors"]) == 1


async def test_no_number_is_kept_as_no_number(client_of, store):
    async with client_of() as http:
        assert (await http.post("/v1/signals", json=signal(value=None))).json()["accepted"] == 1
        body = json.dumps(signal(id="s2", value=float("nan")))
        answer = await http.post(
            "/v1/signals", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.json()["errors"][0]["field"] == "value"


async def test_with_a_token_nobody_gets_in_without_it(client_of):
    async with client_of(token="right-token", base="http://push.example") as http:
        for given in ("", "Bearer wrong", "Basic right-token", "Bearer right-tokenx"):
            for path in ("/v1/signals", "/v1/events", "/v1/batch"):
                answer = await http.post(path, json=xid(), headers={"Authorization": given})
                assert answer.status_code == 401
            assert (await http.get("/metrics", headers={"Authorization": given})).status_code == 401
        right = {"Authorization": "Bearer right-token"}
        assert (await http.post("/v1/events", json=xid(), headers=right)).status_code == 200


async def test_without_a_token_only_loopback_names_and_json_are_served(client_of):
    async with client_of() as http:
        named = await http.post("/v1/events", json=xid(), headers={"Host": "evil.example"})
        assert named.status_code == 400
        form = await http.post(
            "/v1/events", content=json.dumps(xid()), headers={"Content-Type": "text/plain"}
        )
        assert form.status_code == 415


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/events", b"{", 400),
        ("/v1/events", b"\xff", 400),
        ("/v1/events", b"[" * 5000, 400),
        ("/v1/batch", b"[]", 400),
        ("/v1/batch", b'{"events": {}}', 400),
        ("/v1/batch", b'{"rumours": []}', 400),
        ("/v1/events", b" " * 20_000, 413),
        ("/v1/events", json.dumps([1] * 11).encode(), 413),
    ],
)
async def test_a_body_that_cannot_be_used_is_one_clear_answer(client_of, path, body, status):
    async with client_of(longest_bytes=10_000, most_items=10) as http:
        answer = await http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "push.port"),
        ({"push__port": 8080, "push__host": "0.0.0.0"}, "push.token_file"),
        ({"push__port": 8080, "push__token_env": "NOT_SET_ANYWHERE"}, "push.token_env"),
    ],
)
def test_the_process_refuses_an_address_without_a_token(options, field):
    with pytest.raises(UsageError) as raised:
        push_token(load_settings(None, environ={}, **options))
    assert raised.value.field == field


# --- how the scorer hears of it --------------------------------------------------------------


class Pages:
    """A source with the same page for every node."""

    def __init__(self, lines):
        self.lines = lines

    async def read(self, nodes):
        return [NodeSample(n, NOW, "".join(self.lines.get(n, [])) or None) for n in nodes]

    async def read_events(self, nodes):
        return [NodeSample(n, NOW, None) for n in nodes]

    async def read_window(self, nodes, *, window_s, step_s):
        return []


def page_of(node, *, but=()):
    power = next(r for r in RULES.signals if r.liveness).metrics[0]
    return [f'{power}{{UUID="{p.uuid}"}} 400\n' for p in node.parts if p.slot not in but]


def source_of(store, lines, *, clock=lambda: NOW):
    return WithPushes(
        Pages(lines),
        inbox=StorePushes(store),
        metric_of={r.name: r.metrics[0] for r in RULES.signals if r.metrics},
        clock=clock,
    )


async def test_a_pushed_xid_is_a_hard_fail_at_the_next_look_between_two_ticks(client_of, store):
    source = source_of(store, {n.id: page_of(n) for n in NODES})
    scorer = PoolScorer(RULES, times=RULES.times)
    scorer.set_nodes(NODES)
    async with client_of() as http:
        await http.post("/v1/events", json=xid(79))
    found = []
    for _ in range(3):
        samples = await source.read_events(["n001", "n002"])
        readings = [
            NodeReadings(
                s.node, NOW, asked=False,
                records=tuple(
                    KernelRecord(e.boot_id, e.monotonic_us, e.message, e.at) for e in s.events
                ),
            )
            for s in samples
        ]  # fmt: skip
        if scorer.absorb(readings, now=NOW):
            changes = scorer.evaluate(now=NOW, held=())
            found += [(f.node, f.slot, f.reason) for c in changes for f in c.findings]
    assert [(node, slot) for node, slot, _ in found] == [("n001", "gpu3")]
    assert "xid_79" in found[0][2]


async def test_a_pushed_reading_stands_on_the_page_of_its_part_while_it_is_fresh(client_of, store):
    async with client_of() as http:
        await http.post("/v1/signals", json=[signal(value=4.0), signal(id="s2", part="gpu1")])
    metric = "DCGM_FI_DEV_PCIE_LINK_WIDTH"
    reader = PageReader(RULES.metric_names())
    lines = {"n001": page_of(NODES[0])}
    (sample, other) = await source_of(store, lines).read(["n001", "n002"])
    parts = {p.uuid: p.values.get(metric) for p in reader.read(sample.text)}
    assert parts["GPU-n001-0"] == 4.0
    assert parts["GPU-n001-2"] is None
    assert other.text is None
    later = source_of(store, lines, clock=lambda: NOW + timedelta(seconds=121))
    (sample,) = await later.read(["n001"])
    assert metric not in sample.text


async def test_a_push_never_makes_a_lost_gpu_seen(client_of, store):
    async with client_of() as http:
        await http.post("/v1/signals", json=signal())
    lost = source_of(store, {"n001": page_of(NODES[0], but={"gpu0"})})
    (sample,) = await lost.read(["n001"])
    assert "GPU-n001-0" not in sample.text
    silent = source_of(store, {})
    (sample,) = await silent.read(["n001"])
    assert sample.text is None


async def test_what_was_received_long_ago_is_forgotten(client_of, store):
    async with client_of() as http:
        await http.post("/v1/batch", json={"signals": [signal()], "events": [xid()]})
    inbox = StorePushes(store)
    assert await inbox.forget(received_before=NOW) == 0
    assert await inbox.forget(received_before=NOW + timedelta(seconds=1)) == 2


# --- the process -----------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
async def test_the_process_takes_pushes_and_ends_on_a_signal(store, tmp_path):
    (tmp_path / "token").write_text("a-secret-token\n")
    settings = load_settings(
        None,
        environ={},
        state_dir=str(tmp_path),
        store__url=f"sqlite+aiosqlite:///{tmp_path / 'store.db'}",
        push__port=free_port(),
        push__token_file=str(tmp_path / "token"),
    )
    save_resolved(settings, tmp_path / "run.json")
    argv = [sys.executable, "-m", "workers.dashboard", "--config", str(tmp_path / "run.json")]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE)
    item = xid(at=datetime.now(UTC).isoformat())
    headers = {"Authorization": "Bearer a-secret-token"}
    base = f"http://127.0.0.1:{settings.push.port}"
    try:
        async with httpx.AsyncClient(base_url=base, headers=headers, trust_env=False) as http:
            ends_at = time.monotonic() + 40
            while time.monotonic() < ends_at:
                try:
                    answer = await http.post("/v1/events", json=item)
                    break
                except httpx.TransportError:
                    assert process.poll() is None
                    await asyncio.sleep(0.1)
            assert answer.json() == {"accepted": 1, "repeated": 0, "errors": []}
            page = (await http.get("/metrics")).text
            assert 'sickbay_pool_nodes{pool="pool-a",standing="unknown"} 2.0' in page
    finally:
        process.terminate()
        said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 0, said
    assert "a-secret-token" not in said
