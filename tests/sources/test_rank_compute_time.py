"""The PyTorch hook of the docs: short, and what it sends is what the address takes."""

import importlib.util
import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from sickbay.dashboard.items import SignalItem

HOOK = Path(__file__).parents[2] / "docs" / "how-to" / "rank_compute_time.py"


def hook_module():
    spec = importlib.util.spec_from_file_location("rank_compute_time", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Mark:
    """A CUDA event whose time a test sets."""

    def __init__(self, ms):
        self.ms = ms

    def query(self):
        return True

    def elapsed_time(self, other):
        return other.ms - self.ms


def test_it_stays_short():
    assert len(HOOK.read_text(encoding="utf-8").splitlines()) < 100


def test_the_median_until_the_first_bucket_is_pushed_with_the_ranks_place():
    got, seen = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()
            seen.set()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    module = hook_module()
    url = f"http://127.0.0.1:{server.server_port}"
    timer = module.RankComputeTime(url, token="t0ken", node="n001", part="GPU-1", job="llm", rank=3)
    clock = iter(range(10**6))
    timer._mark = lambda: Mark(next(clock) * 200.0)
    for _ in range(module.EVERY_STEPS):
        timer.step_begins()
        timer.collective_begins()
        timer.collective_begins()
    assert seen.wait(10)
    server.shutdown()
    ((path, authorization, (item,)),) = got
    assert (path, authorization) == ("/v1/signals", "Bearer t0ken")
    sent = SignalItem.model_validate(item)
    assert (sent.signal, sent.value, sent.unit) == ("compute_time", 200.0, "ms")
    assert sent.labels == {"job": "llm", "role": "train", "stage": "0", "rank": "3"}
    assert (datetime.now(UTC) - sent.at).total_seconds() < 60
