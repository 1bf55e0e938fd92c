"""Evidence as files named by their SHA-256, readable by their owner only."""

import asyncio
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from sickbay.domain.evidence import EvidenceRef
from sickbay.errors import EvidenceMissing

_PRIVATE = 0o700
_DIGEST = re.compile(r"[0-9a-f]{64}")


class EvidenceFiles:
    """A content-addressed directory: the same bytes are stored once, in mode 0600.

    `index` is told of every stored fact, so that the store can list it by digest.
    """

    def __init__(
        self,
        directory: Path,
        *,
        index: Callable[[EvidenceRef], Awaitable[None]] | None = None,
    ) -> None:
        self._directory = directory
        self._index = index

    async def put(self, data: bytes, *, kind: str) -> EvidenceRef:
        """Store the bytes; storing them again is the same reference, and mends a changed file."""
        ref = EvidenceRef(hashlib.sha256(data).hexdigest(), size_bytes=len(data), kind=kind)
        await asyncio.to_thread(self._write, ref.sha256, data)
        if self._index is not None:
            await self._index(ref)
        return ref

    async def get(self, sha256: str) -> bytes:
        """The bytes, checked against the digest. Raises `EvidenceMissing`."""
        if not _DIGEST.fullmatch(sha256):
            raise EvidenceMissing(f"{sha256!r} is no SHA-256 digest")
        try:
            data = await asyncio.to_thread(self._path(sha256).read_bytes)
        except OSError as error:
            raise EvidenceMissing(f"no evidence {sha256} is stored here") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise EvidenceMissing(f"evidence {sha256} does not match its digest: it was changed")
        return data

    async def remove(self, sha256: str, *, older_than: datetime) -> bool:
        """Remove one stored fact last stored before `older_than`; whether it is gone."""
        if not _DIGEST.fullmatch(sha256):
            return False
        return await asyncio.to_thread(self._remove, self._path(sha256), older_than)

    def _remove(self, path: Path, older_than: datetime) -> bool:
        try:
            if path.stat().st_mtime >= older_than.timestamp():
                return False
            path.unlink()
        except FileNotFoundError:
            return True
        return True

    def _path(self, digest: str) -> Path:
        return self._directory / digest[:2] / digest

    def _write(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            # Stored again is needed again: retention counts from now.
            os.utime(path)
            return
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._directory, path.parent):
            folder.mkdir(mode=_PRIVATE, exist_ok=True)
            # a folder that was there keeps its mode through mkdir
            if stat.S_IMODE(folder.stat().st_mode) != _PRIVATE:
                folder.chmod(_PRIVATE)
        handle, name = tempfile.mkstemp(dir=path.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.chmod(0o600)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
