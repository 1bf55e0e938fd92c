"""Encryption of what Temporal stores: AES-256-GCM over whole payloads, with keys that rotate.

Each encrypted payload names its key, so that histories written under an old key, or under none,
stay readable while that key is listed. Ids, queue names and search attributes are not payloads:
they stay readable, and nothing secret may be in them.
"""

import base64
import binascii
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    PayloadConverter,
)

from sickbay.cluster_settings import CodecSettings
from sickbay.errors import CodecKeyMissing, UsageError
from sickbay.payloads import shared_data_converter
from sickbay.secret_refs import read_secret

ENCODING = "encoding"
KEY_ID = "encryption-key-id"
ENCRYPTED = b"binary/encrypted"
KEY_BYTES = 32
NONCE_BYTES = 12
# Bound into each payload's tag: bytes of another program under the same key are not ours.
CONTEXT = b"sickbay payload 1:"


class _Cipher(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class AesGcmCodec(PayloadCodec):
    """Encrypts with the active key, decrypts with any key it has, passes what is not encrypted."""

    def __init__(self, keys: Mapping[str, bytes], *, active: str) -> None:
        """Raises `UsageError` when a key has the wrong length or `active` is not among them."""
        make = _cipher()
        wrong = [i for i, key in keys.items() if len(key) != KEY_BYTES]
        if wrong:
            raise UsageError(
                f"codec key {wrong[0]!r} is not {KEY_BYTES} bytes long",
                field="codec.keys",
                remedy="make one with `openssl rand -base64 32`",
            )
        if active and active not in keys:
            raise UsageError(f"no codec key {active!r}", field="codec.active", remedy="list it")
        self._ciphers = {i: make(key) for i, key in keys.items()}
        self._active = active

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each payload encrypted, unless there is no active key or it is encrypted already."""
        return [self._encrypted(p) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each payload in the clear.

        Raises:
            CodecKeyMissing: a payload's key is not listed, or its content does not fit its key.
        """
        return [self._decrypted(p) for p in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        if not self._active or payload.metadata.get(ENCODING) == ENCRYPTED:
            return payload
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[self._active].encrypt(
            nonce, payload.SerializeToString(), _bound_to(self._active)
        )
        metadata = {ENCODING: ENCRYPTED, KEY_ID: self._active.encode()}
        return Payload(metadata=metadata, data=nonce + sealed)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get(ENCODING) != ENCRYPTED:
            return payload
        key_id = payload.metadata.get(KEY_ID, b"").decode("utf-8", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise missing_key(key_id)
        nonce, sealed = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, _bound_to(key_id)))
        except Exception as error:
            raise CodecKeyMissing(
                f"a payload does not open with codec key {key_id!r}: another key of that id wrote"
                " it, or it was changed",
                field="codec.keys",
                remedy=f"list the key that was {key_id!r} when it was written",
            ) from error


class ClosedFailures(DefaultFailureConverterWithEncodedAttributes):
    """Messages and stack traces of failures are payloads too, so that the codec closes them.

    Only a missing key is said in the clear: whoever lacks the key must be able to read which one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._plain = DefaultFailureConverter()

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        """The failure of an exception."""
        if isinstance(exception, CodecKeyMissing):
            self._plain.to_failure(CodecKeyMissing(exception.message), payload_converter, failure)
        else:
            super().to_failure(exception, payload_converter, failure)


class NoKeysCodec(PayloadCodec):
    """Without keys: nothing is encrypted, and what is encrypted is refused by one clear line."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads as they are."""
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads as they are. Raises `CodecKeyMissing` for an encrypted one."""
        for payload in payloads:
            if payload.metadata.get(ENCODING) == ENCRYPTED:
                raise missing_key(payload.metadata.get(KEY_ID, b"").decode("utf-8", "replace"))
        return list(payloads)


def missing_key(key_id: str) -> CodecKeyMissing:
    """The error for a payload whose key is not listed."""
    return CodecKeyMissing(
        f"a payload is encrypted with codec key {key_id!r}, which is not among codec.keys",
        field="codec.keys",
        remedy=f"list the key {key_id!r} in [codec] of every process",
    )


def codec_of(settings: CodecSettings) -> PayloadCodec:
    """The codec these settings describe; its keys are read now.

    Raises:
        UsageError: a key cannot be read or is not 32 bytes, or `cryptography` is not installed.
    """
    if not settings.keys:
        return NoKeysCodec()
    keys = {}
    for key in settings.keys:
        text = read_secret(file=key.file, env=key.env, field=f"codec.keys.{key.id}")
        keys[key.id] = _key_bytes(text or "", key_id=key.id)
    return AesGcmCodec(keys, active=settings.active)


def data_converter(settings: CodecSettings) -> DataConverter:
    """The converter of every client, worker and replay: pydantic, and the codec over it.

    With an active key failure messages and stack traces are encrypted too. Raises as `codec_of`.
    """
    converter = dataclasses.replace(shared_data_converter, payload_codec=codec_of(settings))
    if settings.active:
        return dataclasses.replace(converter, failure_converter_class=ClosedFailures)
    return converter


def _bound_to(key_id: str) -> bytes:
    return CONTEXT + key_id.encode()


def _key_bytes(text: str, *, key_id: str) -> bytes:
    """The key from its base64 (44 characters) or hex (64) text."""
    try:
        key = (
            bytes.fromhex(text)
            if len(text) == 2 * KEY_BYTES
            else base64.b64decode(text, validate=True)
        )
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(
            f"codec key {key_id!r} is not {KEY_BYTES} bytes as base64 or hex",
            field="codec.keys",
            remedy="make one with `openssl rand -base64 32`",
        )
    return key


def _cipher() -> Callable[[bytes], _Cipher]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError(
            "payloads cannot be encrypted: the `cryptography` library is not installed",
            field="codec.keys",
            remedy="pip install 'sickbay[cluster]'",
        ) from error
    return AESGCM
