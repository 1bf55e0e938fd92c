"""One running installation per state directory: an advisory lock with the owner's pid in it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sickbay.errors import Refused

LOCK_FILE = "up.lock"


@contextlib.contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the state directory for this process.

    Raises:
        Refused: another process holds it; its pid is named.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / LOCK_FILE).open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            raise Refused(
                f"{state_dir} is in use by process {owner}",
                remedy="end it, or name another --state directory",
            ) from error
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def is_locked(state_dir: Path) -> bool:
    """Whether an installation runs in this state directory now."""
    try:
        with (state_dir / LOCK_FILE).open("a+", encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True
