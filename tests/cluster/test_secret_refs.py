"""Secrets by reference: read from one place, never shown, never handed to programs of others."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.errors import UsageError
from sickbay.secret_refs import (
    REDACTED,
    ScrubbedFormatter,
    read_secret,
    remember,
    scrub,
    tool_environment,
)

pytestmark = pytest.mark.usefixtures("forget_secrets")


def test_a_secret_comes_from_its_file_or_its_variable(tmp_path):
    (tmp_path / "s").write_text("  from-the-file\n")
    assert read_secret(file=tmp_path / "s", env="", field="x") == "from-the-file"
    assert read_secret(file=None, env="K", field="x", environ={"K": "from-env"}) == "from-env"
    assert read_secret(file=None, env="", field="x") is None


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe\x00"])
def test_a_file_that_holds_no_secret_is_named(tmp_path, content):
    path = tmp_path / "s"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_secret(file=path, env="", field="temporal.api_key")
    assert error.value.field == "temporal.api_key_file"
    assert str(path) in error.value.message
    assert error.value.remedy


@pytest.mark.parametrize("environ", [{}, {"K": ""}, {"K": "  "}])
def test_a_variable_that_holds_no_secret_is_named(environ):
    with pytest.raises(UsageError, match="K is not set") as error:
        read_secret(file=None, env="K", field="temporal.api_key", environ=environ)
    assert error.value.field == "temporal.api_key_env"


def test_two_places_for_one_secret_are_refused(tmp_path):
    with pytest.raises(UsageError, match="both"):
        read_secret(file=tmp_path / "s", env="K", field="x")


@given(
    secret=st.text(st.characters(codec="ascii", min_codepoint=33), min_size=8, max_size=40),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_what_was_read_is_in_no_line(secret, before, after):
    remember(secret)
    assert secret not in scrub(f"{before}{secret}{after}").replace(REDACTED, "\0")


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("authorization: Bearer abc.def-123456", "abc.def-123456", "authorization"),
        ("postgresql+psycopg://me:p4ss-word@db/x", "p4ss-word", "me:[secret]@db/x"),
        ("login password=hunter2222, retry", "hunter2222", "retry"),
        ("GET /?api_key=abcdef123&page=2", "abcdef123", "page=2"),
        (
            "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY----- end",
            "MHcCAQEE",
            "end",
        ),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text, gone, kept):
    shown = scrub(text)
    assert gone not in shown
    assert kept in shown


@pytest.mark.parametrize(
    "text", ["node n001 is out", "set temporal.api_key_file or _env", "http://127.0.0.1:8233/x@y"]
)
def test_ordinary_lines_stay_as_they_are(text):
    assert scrub(text) == text


def test_a_logged_exception_and_its_arguments_lose_their_secrets():
    remember("distinctive-secret")
    formatter = ScrubbedFormatter("%(message)s")
    try:
        raise ValueError("wrong: distinctive-secret")  # noqa: TRY301 - it must have been raised
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "x.py", 1, "with %s", ("distinctive-secret",),
            (ValueError, error, error.__traceback__),
        )  # fmt: skip
    text = formatter.format(record)
    assert "distinctive-secret" not in text
    assert "ValueError" in text


def test_programs_of_others_get_no_settings_and_no_secrets(monkeypatch):
    monkeypatch.setenv("FLEET_API_KEY", "distinctive-secret")
    monkeypatch.setenv("SICKBAY_TEMPORAL__ADDRESS", "t:1")
    monkeypatch.setenv("TEMPORAL_API_KEY", "another-secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:p4ss-word@db/x")
    monkeypatch.setenv("LANG", "C.UTF-8")
    read_secret(file=None, env="FLEET_API_KEY", field="temporal.api_key")
    found = tool_environment()
    assert found["LANG"] == "C.UTF-8"
    assert "PATH" in found
    gone = {"FLEET_API_KEY", "SICKBAY_TEMPORAL__ADDRESS", "TEMPORAL_API_KEY", "DATABASE_URL"}
    assert gone & set(found) == set()


def test_saved_settings_keep_the_reference_and_are_the_owners_alone(tmp_path, monkeypatch):
    from sickbay.settings import load_settings, save_resolved

    monkeypatch.setenv("FLEET_API_KEY", "distinctive-secret")
    config = tmp_path / "s.toml"
    config.write_text('[temporal]\naddress = "t:1"\napi_key_env = "FLEET_API_KEY"\n')
    saved = tmp_path / "run.json"
    saved.write_text("an older one")
    saved.chmod(0o644)
    settings = load_settings(config, environ={})
    save_resolved(settings, saved)
    assert saved.stat().st_mode & 0o777 == 0o600
    assert "distinctive-secret" not in saved.read_text()
    assert load_settings(saved, environ={}) == settings
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("key", ["api_key", "password", "token"])
def test_a_secret_written_into_the_settings_is_refused_and_not_repeated(tmp_path, key):
    from sickbay.settings import load_settings

    config = tmp_path / "s.toml"
    config.write_text(f'[temporal]\n{key} = "distinctive-secret"\n')
    with pytest.raises(UsageError) as error:
        load_settings(config, environ={})
    assert "distinctive-secret" not in error.value.message
    assert key in error.value.message
