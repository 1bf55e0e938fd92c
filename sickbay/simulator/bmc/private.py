"""Files that only their owner may read."""

import os
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all: a kill half-way leaves the old state."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    fresh.replace(path)
