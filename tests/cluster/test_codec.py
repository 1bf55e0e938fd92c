"""The payload codec: keys rotate, mixed histories stay readable, a missing key is said clearly."""

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload

from sickbay.cluster_settings import CodecSettings
from sickbay.codec import ENCODING, AesGcmCodec, codec_of, data_converter
from sickbay.errors import CodecKeyMissing, UsageError
from sickbay.settings import load_settings

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
payloads = st.builds(
    Payload,
    metadata=st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3),
    data=st.binary(max_size=4096),
)


async def through(payload, *, write, read):
    return (await read.decode(await write.encode([payload])))[0]


@given(payload=payloads)
async def test_what_was_written_under_any_listed_key_is_read_back_exactly(payload):
    before = AesGcmCodec({"old": OLD}, active="old")
    after = AesGcmCodec({"old": OLD, "new": NEW}, active="new")
    for write in (before, after):
        assert await through(payload, write=write, read=after) == payload


@given(payload=payloads)
async def test_what_was_never_encrypted_stays_readable(payload):
    codec = AesGcmCodec({"new": NEW}, active="new")
    if payload.metadata.get(ENCODING) != b"binary/encrypted":
        assert await codec.decode([payload]) == [payload]


async def test_nothing_of_the_content_or_its_type_shows_and_no_two_writings_are_alike():
    codec = AesGcmCodec({"new": NEW}, active="new")
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"a distinctive text"')
    first, second = await codec.encode([payload, payload])
    assert b"distinctive" not in first.SerializeToString()
    assert b"json/plain" not in first.SerializeToString()
    assert first.data != second.data


async def test_without_an_active_key_nothing_new_is_encrypted_and_the_old_is_read():
    old = AesGcmCodec({"old": OLD}, active="old")
    retired = AesGcmCodec({"old": OLD}, active="")
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
    assert await retired.encode([payload]) == [payload]
    assert await through(payload, write=old, read=retired) == payload


async def test_a_missing_key_is_named_with_its_remedy():
    written = await AesGcmCodec({"old": OLD}, active="old").encode([Payload(data=b"1")])
    for reader in (AesGcmCodec({"new": NEW}, active="new"), codec_of(CodecSettings())):
        with pytest.raises(CodecKeyMissing, match="'old'") as error:
            await reader.decode(written)
        assert error.value.field == "codec.keys"
        assert error.value.remedy


async def test_another_key_under_the_same_id_and_a_changed_payload_are_refused():
    (written,) = await AesGcmCodec({"k": OLD}, active="k").encode([Payload(data=b"1" * 64)])
    with pytest.raises(CodecKeyMissing):
        await AesGcmCodec({"k": NEW}, active="k").decode([written])
    for position in (0, 13, len(written.data) - 1):
        changed = bytearray(written.data)
        changed[position] ^= 1
        with pytest.raises(CodecKeyMissing):
            await AesGcmCodec({"k": OLD}, active="k").decode(
                [Payload(metadata=written.metadata, data=bytes(changed))]
            )


async def test_a_payload_moved_under_another_key_id_is_refused():
    (written,) = await AesGcmCodec({"a": OLD}, active="a").encode([Payload(data=b"1")])
    moved = Payload(metadata={**written.metadata, "encryption-key-id": b"b"}, data=written.data)
    with pytest.raises(CodecKeyMissing):
        await AesGcmCodec({"b": OLD}, active="b").decode([moved])


@pytest.mark.parametrize("form", ["base64", "hex"])
async def test_keys_come_from_a_file_or_a_variable(tmp_path, form, monkeypatch):
    text = base64.b64encode(NEW).decode() if form == "base64" else NEW.hex()
    (tmp_path / "key").write_text(text + "\n")
    monkeypatch.setenv("OLD_KEY", base64.b64encode(OLD).decode())
    config = tmp_path / "s.toml"
    config.write_text(
        f'[codec]\nactive = "new"\nkeys = [{{id = "new", file = "{tmp_path}/key"}},'
        '{id = "old", env = "OLD_KEY"}]\n'
    )
    settings = load_settings(config, environ={})
    converter = data_converter(settings.codec)
    (made,) = await converter.encode([{"a": 1}])
    assert made.metadata["encryption-key-id"] == b"new"
    written = await AesGcmCodec({"old": OLD}, active="old").encode([Payload(data=b"1")])
    assert (await converter.payload_codec.decode(written))[0].data == b"1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('keys = [{id = "a", file = "x"}, {id = "a", file = "y"}]', "given twice"),
        ('keys = [{id = "a", file = "x"}]\nactive = "b"', "is not among keys"),
        ('keys = [{id = "a"}]', "needs one of file and env"),
        ('keys = [{id = "a", file = "x", env = "Y"}]', "needs one of file and env"),
        ('keys = [{id = "a b", file = "x"}]', "codec.keys.0.id"),
        ('keys = [{id = "a", value = "secret"}]', "unknown key codec.keys.0.value"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, text, said):
    config = tmp_path / "s.toml"
    config.write_text(f"[codec]\n{text}\n")
    with pytest.raises(UsageError, match=said):
        load_settings(config, environ={})


@pytest.mark.parametrize("content", ["", "short", base64.b64encode(b"x" * 31).decode(), "g" * 64])
def test_a_key_that_is_no_key_is_refused_without_showing_it(tmp_path, content):
    (tmp_path / "key").write_text(content)
    settings = CodecSettings.model_validate({"keys": [{"id": "a", "file": tmp_path / "key"}]})
    with pytest.raises(UsageError) as error:
        codec_of(settings)
    assert error.value.remedy
    assert not content or content not in error.value.message


def test_a_key_file_that_is_missing_is_named(tmp_path):
    settings = CodecSettings.model_validate({"keys": [{"id": "a", "file": tmp_path / "no"}]})
    with pytest.raises(UsageError, match="cannot be read"):
        codec_of(settings)


async def test_failure_messages_are_encrypted_with_an_active_key(tmp_path):
    from temporalio.api.failure.v1 import Failure
    from temporalio.exceptions import ApplicationError

    (tmp_path / "key").write_text(base64.b64encode(os.urandom(32)).decode())
    settings = CodecSettings.model_validate(
        {"keys": [{"id": "a", "file": tmp_path / "key"}], "active": "a"}
    )
    converter = data_converter(settings)
    failure = Failure()
    await converter.encode_failure(ApplicationError("a distinctive text", type="Boom"), failure)
    assert b"distinctive" not in failure.SerializeToString()
    assert failure.application_failure_info.type == "Boom", "retry policies match the type"
    assert "distinctive" in str(await converter.decode_failure(failure))
