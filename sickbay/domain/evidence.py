"""Evidence travels by reference: a digest and a size, never the bytes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EvidenceRef:
    """One stored fact: `sha256` is its name and its check, `kind` says what it is (`dcgm_diag`)."""

    sha256: str
    size_bytes: int
    kind: str
