"""Pages and kernel records over HTTP, against a small server in the same process."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from sickbay.adapters.exporter_pages import ExporterPages
from sickbay.adapters.journal_gateway import JournalGateway
from sickbay.adapters.node_signals import NodeSignals

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def row(number: int, message="NVRM: Xid (PCI:0000:13:00): 79, gone", **more):
    return {
        "__CURSOR": f"c{number}", "__REALTIME_TIMESTAMP": str(1_764_547_200_000_000 + number),
        "__MONOTONIC_TIMESTAMP": str(number), "_BOOT_ID": "b1", "_TRANSPORT": "kernel",
        "MESSAGE": message, **more,
    }  # fmt: skip


class Gateway:
    """A journal of rows served as systemd-journal-gatewayd serves them."""

    def __init__(self, rows):
        self.rows = rows
        self.ranges = []
        self.gone = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/metrics"):
            return httpx.Response(200, text=f"page of {request.url.path}")
        if "down" in request.url.path:
            return httpx.Response(503)
        assert request.headers["Accept"] == "application/json"
        assert request.url.params["_TRANSPORT"] == "kernel"
        asked = request.headers["Range"].removeprefix("entries=")
        self.ranges.append(asked)
        if self.gone:
            return httpx.Response(416)
        cursor, skip, number = asked.rsplit(":", 2)
        names = [r["__CURSOR"] for r in self.rows]
        start = int(skip) + (names.index(cursor) if cursor else len(names) * (int(skip) < 0))
        start = max(0, start)
        rows = self.rows[start : start + int(number)]
        return httpx.Response(200, text="\n".join(json.dumps(r) for r in rows))


def client(handler):
    return httpx.AsyncClient(transport=httpx.MockTransport(handler))


async def test_each_record_is_told_once_and_reading_goes_on_behind_the_cursor():
    gateway = Gateway([row(1), row(2)])
    journal = JournalGateway({"n1": "http://x/n1/entries"}, client(gateway))
    (first,) = await journal.read(["n1"])
    assert [e.monotonic_us for e in first.entries] == [1, 2]
    assert first.entries[0].boot_id == "b1"
    assert first.entries[0].at.tzinfo is UTC
    (second,) = await journal.read(["n1"])
    assert second.entries == ()
    gateway.rows.append(row(3))
    (third,) = await journal.read(["n1"])
    assert [e.monotonic_us for e in third.entries] == [3]


async def test_only_the_kernels_own_well_formed_records_count():
    rows = [
        row(1, _TRANSPORT="syslog"),
        row(2, message=list(b"NVRM: Xid")),
        row(3, message=None),
        row(4, __REALTIME_TIMESTAMP="never"),
        row(5),
    ]
    journal = JournalGateway({"n1": "http://x/n1/entries"}, client(Gateway(rows)))
    (answer,) = await journal.read(["n1"])
    assert [e.monotonic_us for e in answer.entries] == [2, 5]
    assert answer.entries[0].message == "NVRM: Xid"


async def test_a_lost_cursor_looks_back_anew():
    gateway = Gateway([row(1)])
    journal = JournalGateway({"n1": "http://x/n1/entries"}, client(gateway))
    await journal.read(["n1"])
    gateway.gone = True
    (lost,) = await journal.read(["n1"])
    assert lost.error
    gateway.gone = False
    (again,) = await journal.read(["n1"])
    assert len(again.entries) == 1


async def test_a_gateway_that_cannot_count_back_is_read_from_its_head():
    gateway = Gateway([row(1), row(2)])

    def strict(request):
        if request.headers["Range"].startswith("entries=:-"):
            return httpx.Response(400)
        return gateway(request)

    journal = JournalGateway({"n1": "http://x/n1/entries"}, client(strict))
    (refused,) = await journal.read(["n1"])
    assert refused.error
    (answer,) = await journal.read(["n1"])
    assert [e.monotonic_us for e in answer.entries] == [1, 2]


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])
async def test_a_page_that_does_not_answer_is_silent_with_its_reason(error):
    def handler(request):
        raise error

    pages = ExporterPages({"n1": "http://x/n1/metrics"}, client=client(handler))
    silent, unknown = await pages.read(["n1", "n2"])
    assert silent.text is None
    assert type(error).__name__ in silent.error
    assert unknown.text is None


async def test_an_answer_other_than_200_is_no_page():
    pages = ExporterPages({"n1": "http://x/m"}, client=client(lambda _: httpx.Response(503)))
    (page,) = await pages.read(["n1"])
    assert (page.text, page.error) == (None, "HTTP 503")


async def test_the_source_joins_both_per_node_in_the_order_asked():
    http = client(Gateway([row(1)]))
    pages = ExporterPages({n: f"http://x/{n}/metrics" for n in ("n1", "n2")}, client=http)
    journal = JournalGateway({"n1": "http://x/n1/entries", "n2": "http://x/down/entries"}, http)
    source = NodeSignals(pages.read, entries=journal.read, clock=lambda: NOW)
    two, one = await source.read(["n2", "n1"])
    assert (two.node, two.text, two.events) == ("n2", "page of /n2/metrics", ())
    assert len(one.events) == 1
    assert (one.at, one.error) == (NOW, "")
    only = await source.read_events(["n1"])
    assert (only[0].text, only[0].events) == (None, ())
