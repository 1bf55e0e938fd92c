"""The codec server: for who has the token, for Temporal's UI, and for nobody else."""

import base64
import json
import sys

import httpx
import pytest
from temporalio.api.common.v1 import Payload

from sickbay.codec import AesGcmCodec
from sickbay.codec_server import MAX_BODY_BYTES, codec_app

KEY, TOKEN, UI = bytes(range(32)), "a-distinctive-token", "http://127.0.0.1:8233"


@pytest.fixture
def codec():
    return AesGcmCodec({"k": KEY}, active="k")


@pytest.fixture
def http(codec):
    app = codec_app(codec, token=TOKEN, origins=[UI])
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8234",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )  # fmt: skip


def as_json(payload: Payload) -> dict:
    return {
        "metadata": {k: base64.b64encode(v).decode() for k, v in payload.metadata.items()},
        "data": base64.b64encode(payload.data).decode(),
    }


async def test_it_opens_what_the_codec_closed_and_closes_what_is_open(http, codec):
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')
    (closed,) = await codec.encode([plain])
    answer = await http.post("/decode", json={"payloads": [as_json(closed), as_json(plain)]})
    assert answer.json() == {"payloads": [as_json(plain)] * 2}
    answer = await http.post("/encode", json={"payloads": [as_json(plain)]})
    assert base64.b64decode(answer.json()["payloads"][0]["metadata"]["encoding"]) == (
        b"binary/encrypted"
    )


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer ", TOKEN[:-1], "Bearer \xe9"])
async def test_without_the_token_nothing_is_opened(http, header):
    headers = {"Authorization": header.encode("latin-1")}
    answer = await http.post("/decode", json={"payloads": []}, headers=headers)
    assert answer.status_code == 401
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b'{"payloads": 1}',
        b'{"other": []}',
        b"\xff",
        b"[" * 100_000,
        b'{"payloads": [1]}',
    ],
)
async def test_a_body_that_is_no_list_of_payloads_is_refused(http, body):
    answer = await http.post("/decode", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_a_missing_key_is_said_and_a_huge_body_is_refused(http):
    (other,) = await AesGcmCodec({"gone": KEY}, active="gone").encode([Payload(data=b"1")])
    answer = await http.post("/decode", json={"payloads": [as_json(other)]})
    assert answer.status_code == 400
    assert "'gone'" in answer.json()["error"]["message"]
    answer = await http.post("/decode", content=b" " * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413


async def test_only_the_ui_may_ask_from_a_browser_and_only_by_a_loopback_name(http):
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-namespace"}
    answer = await http.options("/decode", headers={"Origin": UI, **ask})
    assert answer.headers["access-control-allow-origin"] == UI
    other = await http.options("/decode", headers={"Origin": "http://other.example.net", **ask})
    assert "access-control-allow-origin" not in other.headers
    rebound = await http.post("/decode", json={"payloads": []}, headers={"Host": "evil.example"})
    assert rebound.status_code == 400


def test_the_command_asks_for_keys_and_a_token(tmp_path, capsys):
    from sickbay.cli.main import invoke

    config = tmp_path / "s.toml"
    config.write_text("")
    assert invoke(["codec-server", "--config", str(config)]) == 2
    (tmp_path / "key").write_text(base64.b64encode(KEY).decode())
    config.write_text(f'[codec]\nactive = "k"\nkeys = [{{id = "k", file = "{tmp_path}/key"}}]\n')
    assert invoke(["codec-server", "--config", str(config)]) == 2
    assert "needs a token" in capsys.readouterr().err


async def test_the_command_serves_on_loopback(tmp_path, codec):
    import asyncio

    (tmp_path / "key").write_text(base64.b64encode(KEY).decode())
    (tmp_path / "token").write_text(TOKEN)
    config = tmp_path / "s.toml"
    config.write_text(
        f'[codec]\nactive = "k"\nkeys = [{{id = "k", file = "{tmp_path}/key"}}]\n'
        f'server_token_file = "{tmp_path}/token"\n'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "sickbay.cli.main", "codec-server", "--config", str(config),
        "--port", "0", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"COLUMNS": "200", **__import__("os").environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), timeout=30)).decode()
        url = line.split()[3]
        (closed,) = await codec.encode([Payload(data=b"hello")])
        body = json.dumps({"payloads": [as_json(closed)]})
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, transport=httpx.AsyncHTTPTransport(retries=5)
        ) as real:
            answer = await real.post("/decode", content=body)
        assert base64.b64decode(answer.json()["payloads"][0]["data"]) == b"hello"
    finally:
        process.terminate()
        await process.wait()
