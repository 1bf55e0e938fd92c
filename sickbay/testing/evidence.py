"""Evidence in memory, by digest."""

from hashlib import sha256

from sickbay.domain.evidence import EvidenceRef
from sickbay.errors import EvidenceMissing


class MemoryEvidence:
    """The Evidence port. `stored` may be tampered with by a test: `get` notices."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.down: OSError | None = None
        self.refused = 0

    async def put(self, data: bytes, *, kind: str) -> EvidenceRef:
        """Store once by digest. Raises what `down` is, while it is set."""
        if self.down is not None:
            self.refused += 1
            raise self.down
        digest = sha256(data).hexdigest()
        self.stored[digest] = data
        return EvidenceRef(digest, size_bytes=len(data), kind=kind)

    async def get(self, sha256: str) -> bytes:
        """The bytes. Raises `EvidenceMissing` when they are not there or are others."""
        data = self.stored.get(sha256)
        if data is None or _digest(data) != sha256:
            raise EvidenceMissing(f"no evidence {sha256!r}, or it was changed")
        return data


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
