"""Sending an image: which answers mean that it may be at work, and which that it is not."""

import asyncio
import hashlib
import json
import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from sickbay.adapters.redfish import Access, Connections, RedfishFirmware
from sickbay.contracts.firmware import TaskState
from sickbay.contracts.steps import Outcome
from sickbay.domain.firmware import FirmwareImage

BYTES = b"firmware" * 1000
ROOT = "/redfish/v1"
INVENTORY = f"{ROOT}/UpdateService/FirmwareInventory"


def lost(handler):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


class Controller:
    """A controller of one node: its pages, what it was sent, and how it answers an image."""

    def __init__(self):
        self.posts = []
        self.answer = lambda handler: handler.say(202, {}, Location=f"{ROOT}/TaskService/Tasks/7")
        self.spoil = {}
        self.pages = {
            f"{ROOT}": {
                "Id": "r",
                "Systems": {"@odata.id": f"{ROOT}/Systems"},
                "UpdateService": {"@odata.id": f"{ROOT}/UpdateService"},
            },
            f"{ROOT}/UpdateService": {
                "FirmwareInventory": {"@odata.id": INVENTORY},
                "MultipartHttpPushUri": "/push",
                "Actions": {"#UpdateService.SimpleUpdate": {"target": "/pull"}},
            },
            INVENTORY: {
                "Members": [{"@odata.id": f"{INVENTORY}/A"}],
                "Members@odata.nextLink": f"{INVENTORY}?page=2",
            },
            f"{INVENTORY}?page=2": {"Members": [{"@odata.id": f"{INVENTORY}/B"}]},
            f"{INVENTORY}/A": {"@odata.id": f"{INVENTORY}/A", "Id": "GPU_0", "Version": "1"},
            f"{INVENTORY}/B": {"@odata.id": f"{INVENTORY}/B", "Id": "BMC", "Version": None},
            f"{ROOT}/TaskService/Tasks/8": {"TaskState": "Completed", "TaskStatus": "OK"},
        }


@contextmanager
def serving(controller):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def say(self, status, body, **headers):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            if self.path == "/fw.bin":
                return self.say(200, BYTES)
            path = self.path.rstrip("/")
            if path in controller.spoil:
                return controller.spoil[path](self)
            body = controller.pages.get(path)
            return self.say(404 if body is None else 200, body or {})

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path in {"/push", "/pull"}:
                controller.posts.append((self.path, body))
                return controller.answer(self)
            return self.say(404, {})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def bench(tmp_path):
    controller = Controller()
    with serving(controller) as url:
        # A controller of its own for each node, as `{node}` in the address says.
        access = Access(f"{url}/?{{node}}", timeout_s=1.0)
        connections = Connections(access)
        firmware = RedfishFirmware(connections, upload_timeout_s=1.0)
        path = tmp_path / "fw.bin"
        path.write_bytes(BYTES)
        yield controller, firmware, str(path), f"{url}/fw.bin"
        asyncio.run(connections.close())


def image(source, *, data=BYTES):
    return FirmwareImage("GPU_*", "2", "*", source, hashlib.sha256(data).hexdigest())


async def test_versions_of_every_page_and_an_untold_one_is_empty(bench):
    _, firmware, _, _ = bench
    assert await firmware.versions("n1") == {"GPU_0": "1", "BMC": ""}


async def test_a_path_is_pushed_with_its_targets_and_an_address_is_fetched(bench):
    controller, firmware, path, uri = bench
    start = await firmware.flash("n1", image=image(path), components=["GPU_0"])
    assert (start.effect.outcome, start.task) == (
        Outcome.SUCCEEDED,
        f"{ROOT}/TaskService/Tasks/7",
    )
    ((where, body),) = controller.posts
    assert where == "/push"
    assert json.dumps({"Targets": [f"{INVENTORY}/A"]}).encode() in body
    assert BYTES in body
    await firmware.flash("n1", image=image(uri), components=["GPU_0"])
    where, body = controller.posts[-1]
    assert (where, json.loads(body)["ImageURI"], json.loads(body)["Targets"]) == (
        "/pull",
        uri,
        [f"{INVENTORY}/A"],
    )


@pytest.mark.parametrize("which", [2, 3])
async def test_a_differing_digest_is_named_with_both_and_nothing_is_sent(bench, which):
    controller, firmware, *_ = bench
    wrong = image(bench[which], data=b"other")
    start = await firmware.flash("n1", image=wrong, components=["GPU_0"])
    assert (start.effect.outcome, start.sent) == (Outcome.PERMANENT, False)
    assert wrong.sha256 in start.effect.detail
    assert hashlib.sha256(BYTES).hexdigest() in start.effect.detail
    assert controller.posts == []


@pytest.mark.parametrize(
    ("answer", "outcome", "sent"),
    [
        (lost, Outcome.AMBIGUOUS, True),
        (lambda h: h.say(500, {}), Outcome.AMBIGUOUS, True),
        (lambda h: h.say(503, {}), Outcome.TRANSIENT, False),
        (lambda h: h.say(400, {"error": {"message": "bad signature"}}), Outcome.PERMANENT, True),
        (lambda h: h.say(400, ["odd"]), Outcome.AMBIGUOUS, True),
        (lambda h: h.say(202, b"<html>"), Outcome.SUCCEEDED, True),
    ],
)
async def test_what_each_answer_to_an_image_means_and_it_is_sent_once(bench, answer, outcome, sent):
    controller, firmware, path, _ = bench
    controller.answer = answer
    start = await firmware.flash("n1", image=image(path), components=["GPU_0"])
    assert (start.effect.outcome, start.sent) == (outcome, sent), start
    assert len(controller.posts) == 1


@pytest.mark.parametrize(
    ("spoiled", "outcome"),
    [
        (lost, Outcome.TRANSIENT),
        (lambda h: h.say(500, {}), Outcome.TRANSIENT),
        (lambda h: h.say(404, {}), Outcome.PERMANENT),
        (lambda h: h.say(200, b"<html>"), Outcome.PERMANENT),
    ],
)
async def test_a_question_that_fails_before_is_no_lost_flash(bench, spoiled, outcome):
    controller, firmware, path, _ = bench
    await firmware.versions("n1")
    controller.spoil[f"{INVENTORY}/A"] = spoiled
    start = await firmware.flash("n1", image=image(path), components=["GPU_0"])
    assert (start.effect.outcome, start.sent) == (outcome, False)
    assert controller.posts == []


async def test_a_controller_that_can_take_no_image_says_so(bench):
    controller, firmware, path, uri = bench
    controller.pages[f"{ROOT}/UpdateService"].pop("MultipartHttpPushUri")
    controller.pages[f"{ROOT}/UpdateService"]["Actions"] = {}
    for source in (path, uri, f"{path}.missing"):
        start = await firmware.flash("n1", image=image(source), components=["GPU_0"])
        assert (start.effect.outcome, start.sent) == (Outcome.PERMANENT, False)
    assert controller.posts == []


async def test_c53_a_task_is_done_gone_or_unknown(bench):
    controller, firmware, *_ = bench
    tasks = f"{ROOT}/TaskService/Tasks"
    assert (await firmware.task("n1", task=f"{tasks}/8")).state is TaskState.SUCCEEDED
    assert (await firmware.task("n1", task=f"{tasks}/9")).state is TaskState.GONE
    controller.spoil[f"{tasks}/8"] = lost
    assert (await firmware.task("n1", task=f"{tasks}/8")).state is TaskState.UNKNOWN
    controller.spoil[f"{tasks}/8"] = lambda h: h.say(202, {})
    assert (await firmware.task("n1", task=f"{tasks}/8")).state is TaskState.RUNNING
