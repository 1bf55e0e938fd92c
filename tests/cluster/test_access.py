"""Reaching a cluster: TLS, client certificates, API key, profiles; one clear line when it fails."""

import asyncio
import base64
import sys

import pytest
import trustme

from sickbay.access import access_of
from sickbay.cluster_settings import TemporalSettings
from sickbay.connection import open_client
from sickbay.errors import Unreachable, UsageError
from sickbay.settings import load_settings, save_resolved

KEY = "a-distinctive-api-key-4711"


def settings_of(tmp_path, text, **environ):
    config = tmp_path / "s.toml"
    config.write_text(text, encoding="utf-8")
    return load_settings(config, environ=environ, state_dir=str(tmp_path / "state"))


def cluster(front, tls, more=""):
    return f'[temporal]\naddress = "{front.address}"\n{more}\n[temporal.tls]\n{tls}'


async def fails(settings):
    with pytest.raises(Unreachable) as error:
        await asyncio.wait_for(open_client(settings, wait_s=0), timeout=40)
    assert settings.temporal.address in error.value.message
    assert error.value.remedy
    assert "\n" not in error.value.message
    return error.value


async def test_mutual_tls_and_an_api_key_open_a_cluster(front, tmp_path):
    front.api_key = KEY
    (tmp_path / "api-key").write_text(KEY + "\n")
    more = f'api_key_file = "{tmp_path}/api-key"'
    settings = settings_of(tmp_path, cluster(front, front.trust() + front.papers(), more))
    client = await open_client(settings, wait_s=0)
    assert await client.count_workflows() is not None
    assert set(front.seen) == {f"Bearer {KEY}"}


async def test_a_server_of_another_authority_is_named_as_such(front, tmp_path):
    other = front.trust(trustme.CA(), name="other")
    error = await fails(settings_of(tmp_path, cluster(front, other + front.papers())))
    assert "certificate that is not accepted" in error.message
    assert error.field == "temporal.tls.ca_file"


async def test_a_certificate_for_another_name_is_named_as_such(front, tmp_path):
    tls = front.trust() + front.papers() + 'server_name = "wrong.example.net"\n'
    error = await fails(settings_of(tmp_path, cluster(front, tls)))
    assert "wrong.example.net" in error.message
    assert "server_name" in error.remedy


async def test_a_server_name_bridges_an_address_the_certificate_does_not_have(front, tmp_path):
    tls = front.trust() + front.papers() + 'server_name = "temporal.example.net"\n'
    await open_client(settings_of(tmp_path, cluster(front, tls)), wait_s=0)


async def test_a_client_certificate_that_is_missing_or_of_another_authority_is_named(
    front, tmp_path
):
    error = await fails(settings_of(tmp_path, cluster(front, front.trust())))
    assert "want" in error.message
    assert "a client certificate" in error.message
    assert error.field == "temporal.tls.cert_file"
    stranger = front.papers("stranger", authority=trustme.CA())
    error = await fails(settings_of(tmp_path, cluster(front, front.trust() + stranger)))
    assert "refuse" in error.message
    assert "our client certificate" in error.message


async def test_a_missing_and_a_wrong_api_key_are_named_and_never_shown(front, tmp_path):
    front.api_key = KEY
    tls = front.trust() + front.papers()
    error = await fails(settings_of(tmp_path, cluster(front, tls)))
    assert "without API key" in error.message
    (tmp_path / "api-key").write_text("another-distinctive-key")
    more = f'api_key_file = "{tmp_path}/api-key"'
    error = await fails(settings_of(tmp_path, cluster(front, tls, more)))
    assert "refuses the API key" in error.message
    assert "another-distinctive-key" not in error.message


async def test_plain_to_a_tls_server_and_tls_to_a_plain_one_are_named(
    front, temporal_local, tmp_path
):
    error = await fails(settings_of(tmp_path, f'[temporal]\naddress = "{front.address}"\n'))
    assert "speaks TLS" in error.message
    plain = temporal_local.client.service_client.config.target_host
    text = f'[temporal]\naddress = "{plain}"\n[temporal.tls]\nenabled = true\n'
    error = await fails(settings_of(tmp_path, text))
    assert "does not speak TLS" in error.message


async def test_nobody_there_an_unknown_name_and_an_unknown_namespace(temporal_local, tmp_path):
    error = await fails(settings_of(tmp_path, '[temporal]\naddress = "127.0.0.1:1"\n'))
    assert "nothing listens" in error.message
    error = await fails(settings_of(tmp_path, '[temporal]\naddress = "no-such.invalid:7233"\n'))
    assert "no-such.invalid" in error.message
    plain = temporal_local.client.service_client.config.target_host
    text = f'[temporal]\naddress = "{plain}"\nnamespace = "nowhere"\n'
    error = await fails(settings_of(tmp_path, text))
    assert "no namespace 'nowhere'" in error.message


async def test_a_refused_worker_keeps_trying_says_why_and_is_let_in_later(front, tmp_path):
    (tmp_path / "api-key").write_text("the-key-of-tomorrow")
    front.api_key = "the-key-of-yesterday"
    more = f'api_key_file = "{tmp_path}/api-key"'
    settings = settings_of(tmp_path, cluster(front, front.trust() + front.papers(), more))
    save_resolved(settings, tmp_path / "run.json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "workers.control", "--config", str(tmp_path / "run.json"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = b""
        while b"trying on" not in said:
            said += await asyncio.wait_for(process.stdout.readline(), timeout=40)
        assert b"refuses the API key" in said
        assert b"api_key_file" in said
        assert process.returncode is None, "it gave up"
        front.api_key = "the-key-of-tomorrow"
        rest, _ = await asyncio.wait_for(process.communicate(), timeout=40)
        # Without a fleet it has nothing to serve; but it came past Temporal.
        assert b"no scheduler is configured" in rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


PAIR = '[temporal]\naddress = "t.example.net:7233"\n[temporal.tls]\n'


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (PAIR + 'cert_file = "c.pem"\n', "temporal.tls"),
        (PAIR + 'ca_file = "nowhere.pem"\n', "temporal.tls.ca_file"),
        ('[temporal]\naddress = "t.example.net"\n', "temporal.address"),
        ('[temporal]\naddress = "t.example.net:0"\n', "temporal.address"),
        ('[temporal]\naddress = "t:1"\napi_key_env = "NOT_SET"\n', "temporal.api_key_env"),
        ('[temporal]\naddress = "t:1"\napi_key_file = "nowhere"\n', "temporal.api_key_file"),
        ('[temporal]\naddress = "t:1"\nprofile = "nobody"\n', "temporal.profile"),
        ('[temporal]\naddress = "t:1"\nconfig_file = "no.toml"\n', "temporal.config_file"),
    ],
)
def test_access_that_cannot_work_is_refused_with_field_and_remedy(tmp_path, text, field):
    with pytest.raises(UsageError) as error:
        access_of(settings_of(tmp_path, text).temporal, environ={"HOME": str(tmp_path)})
    assert error.value.field == field
    assert error.value.remedy


def test_a_key_of_another_certificate_and_a_file_that_is_no_certificate_are_refused(tmp_path):
    authority = trustme.CA()
    one, two = authority.issue_cert("a@x.net"), authority.issue_cert("b@x.net")
    (tmp_path / "c.pem").write_bytes(one.cert_chain_pems[0].bytes())
    (tmp_path / "k.pem").write_bytes(two.private_key_pem.bytes())
    (tmp_path / "ca.pem").write_text("no certificate")
    pair = PAIR + f'cert_file = "{tmp_path}/c.pem"\nkey_file = "{tmp_path}/k.pem"\n'
    with pytest.raises(UsageError, match="mismatch"):
        access_of(settings_of(tmp_path, pair).temporal, environ={})
    with pytest.raises(UsageError, match="holds no certificate"):
        access_of(settings_of(tmp_path, PAIR + f'ca_file = "{tmp_path}/ca.pem"').temporal)


def test_an_api_key_never_travels_in_the_clear_but_on_loopback(tmp_path):
    def temporal(address):
        return TemporalSettings.model_validate(
            {"address": address, "api_key_env": "K", "tls": {"enabled": False}}
        )

    for address in (
        "t.example.net:7233",
        "localhost.example.net:1",
        "127.example.net:1",
        "10.0.0.1:1",
    ):
        with pytest.raises(UsageError, match="unencrypted"):
            access_of(temporal(address), environ={"K": KEY})
    for address in ("127.0.0.1:7233", "localhost:7233", "[::1]:7233"):
        loopback = access_of(temporal(address), environ={"K": KEY})
        assert loopback.tls is None
        assert loopback.api_key == KEY


def test_an_api_key_switches_tls_on():
    temporal = TemporalSettings(address="t.example.net:7233", api_key_env="K")
    assert access_of(temporal, environ={"K": KEY}).tls is not None


PROFILES = """
[profile.default]
address = "default.example.net:7233"
[profile.fleet]
address = "profile.example.net:7233"
namespace = "from-profile"
api_key = "profile-api-key"
"""


def test_settings_stand_over_variables_and_variables_over_a_profile(tmp_path):
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES)
    named = {"TEMPORAL_PROFILE": "fleet", "TEMPORAL_CONFIG_FILE": str(file)}
    access = access_of(TemporalSettings(), environ=named)
    assert (access.address, access.namespace) == ("profile.example.net:7233", "from-profile")
    assert access.api_key == "profile-api-key"
    assert access.tls is not None
    env = named | {"TEMPORAL_ADDRESS": "env.example.net:7233", "TEMPORAL_API_KEY": "env-api-key"}
    access = access_of(TemporalSettings(), environ=env)
    assert (access.address, access.namespace) == ("env.example.net:7233", "from-profile")
    assert access.api_key == "env-api-key"
    own = TemporalSettings(address="own.example.net:7233", namespace="own", api_key_env="K")
    access = access_of(own, environ=env | {"K": KEY})
    assert (access.address, access.namespace, access.api_key) == (
        "own.example.net:7233", "own", KEY,
    )  # fmt: skip


def test_a_profile_named_in_the_settings_is_used(tmp_path):
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES)
    temporal = TemporalSettings(profile="fleet", config_file=file, environment=False)
    access = access_of(temporal, environ={"TEMPORAL_ADDRESS": "env.example.net:7233"})
    assert access.address == "profile.example.net:7233"


def test_a_default_profile_nobody_named_is_not_used(tmp_path):
    home = tmp_path / ".config" / "temporalio"
    home.mkdir(parents=True)
    (home / "temporal.toml").write_text(PROFILES)
    assert access_of(TemporalSettings(), environ={"HOME": str(tmp_path)}) is None


def test_the_environment_can_be_left_out(tmp_path):
    env = {"TEMPORAL_ADDRESS": "env.example.net:7233", "TEMPORAL_API_KEY": KEY}
    assert access_of(TemporalSettings(environment=False), environ=env) is None


def test_certificates_of_the_environment_are_used_where_settings_name_none(tmp_path):
    pem = trustme.CA().cert_pem.bytes().decode()
    env = {
        "TEMPORAL_ADDRESS": "t:1",
        "TEMPORAL_TLS": "true",
        "TEMPORAL_TLS_SERVER_CA_CERT_DATA": pem,
    }
    access = access_of(TemporalSettings(), environ=env)
    assert access.tls.server_root_ca_cert == pem.encode()


def test_an_access_never_shows_its_secrets():
    secret = base64.b64encode(KEY.encode()).decode()
    temporal = TemporalSettings(address="t:1", api_key_env="K")
    assert secret not in repr(access_of(temporal, environ={"K": secret}))


async def test_a_server_that_only_closes_connections_is_not_taken_for_a_tls_server(tmp_path):
    async def close(reader, writer):
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        text = f'[temporal]\naddress = "127.0.0.1:{port}"\n'
        error = await fails(settings_of(tmp_path, text))
    assert "TLS" not in error.message
    assert "does not answer" in error.message


async def test_a_server_that_accepts_and_says_nothing_is_not_waited_for_long(tmp_path):
    async def wait(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        tls = "[temporal.tls]\nenabled = true\n"
        error = await fails(
            settings_of(tmp_path, f'[temporal]\naddress = "127.0.0.1:{port}"\n{tls}')
        )
    assert "does not answer" in error.message


async def test_up_follows_temporals_own_variables_and_says_so(
    temporal_local, tmp_path, monkeypatch, capsys
):
    from sickbay.cli.installation import Installation

    target = temporal_local.client.service_client.config.target_host
    monkeypatch.setenv("TEMPORAL_ADDRESS", target)
    installation = Installation(settings_of(tmp_path, ""))
    resolved = await installation._start_temporal()
    assert resolved.temporal.address == target
    assert resolved.temporal.namespace == "default"
    assert installation.processes.children == []
    assert target in capsys.readouterr().out.replace("\n", "")
