"""Evidence as files named by their SHA-256, readable by their owner only."""

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path

from sickbay.domain.evidence import EvidenceRef
from sickbay.errors import EvidenceMissing


class EvidenceFiles:
    """A content-addressed directory: the same bytes are stored once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, data: bytes, *, kind: str) -> EvidenceRef:
        """Store the bytes; storing them again is the same reference."""
        digest = hashlib.sha256(data).hexdigest()
        await asyncio.to_thread(self._write, digest, data)
        return EvidenceRef(sha256=digest, size_bytes=len(data), kind=kind)

    async def get(self, sha256: str) -> bytes:
        """The bytes, checked against the digest. Raises `EvidenceMissing`."""
        path = self._path(sha256)
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise EvidenceMissing(f"no evidence {sha256} is stored here") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise EvidenceMissing(f"evidence {sha256} does not match its digest: it was changed")
        return data

    def _path(self, digest: str) -> Path:
        return self._directory / digest[:2] / digest

    def _write(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        if path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o600)
        Path(name).replace(path)
