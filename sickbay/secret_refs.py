"""Secrets by reference: read where they are needed, remembered only to keep them out of logs.

A secret comes from a file (its whitespace at both ends does not count) or from an environment
variable. Whatever was read here is replaced in every line that `scrub` sees.
"""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from sickbay.errors import UsageError

REDACTED = "[secret]"
# Shorter values would redact ordinary words; none of the secrets used here is that short.
SHORTEST = 6
# Secrets that were never read here, by the company they keep: a key's header, a url's password.
_PATTERNS = (
    (re.compile(r"(?i)(bearer\s+)[A-Za-z0-9._~+/=-]{6,}"), rf"\1{REDACTED}"),
    (re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@]+:)[^\s@/]+(@)"), rf"\1{REDACTED}\2"),
    (re.compile(r"(?i)\b(password|passwd|api[_-]?key|token)=[^\s,;&'\"]+"), rf"\1={REDACTED}"),
    (
        re.compile(
            r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL
        ),
        REDACTED,
    ),
)

# Variables that configure sickbay and its way to Temporal: no business of a tool on the node.
OURS = ("SICKBAY_", "TEMPORAL_")

_known: set[str] = set()


def process_environment() -> Mapping[str, str]:
    """The environment of this process, as it is now."""
    return os.environ


def tool_environment() -> dict[str, str]:
    """The environment for programs of others: without our settings and without any secret."""
    return {
        name: value
        for name, value in process_environment().items()
        if not name.startswith(OURS) and scrub(value) == value
    }


def read_secret(
    *, file: Path | None, env: str, field: str, environ: Mapping[str, str] | None = None
) -> str | None:
    """The secret a setting refers to; None when it refers to nothing.

    `field` is the setting without its `_file` or `_env`, e.g. `temporal.api_key`.

    Raises:
        UsageError: both are given, the file cannot be read, the variable is not set, or it is
            empty. The message names the place, never the content.
    """
    if file is not None and env:
        raise UsageError(
            f"{field}: both a file and a variable are given", field=field, remedy="keep one"
        )
    if file is not None:
        return remember(_from_file(file, field=f"{field}_file"))
    if env:
        value = (process_environment() if environ is None else environ).get(env, "").strip()
        if not value:
            raise UsageError(
                f"{field}_env: the environment variable {env} is not set or empty",
                field=f"{field}_env",
                remedy=f"set {env} for this process, or name another variable",
            )
        return remember(value)
    return None


def read_bytes(file: Path, *, field: str) -> bytes:
    """A file that a setting names.

    Raises:
        UsageError: it cannot be read; the message names setting and path.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{field}: {file} cannot be read ({error.strerror})",
            field=field,
            remedy="name a file this process may read",
        ) from error


def _from_file(file: Path, *, field: str) -> str:
    try:
        value = read_bytes(file, field=field).decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{field}: {file} is not text", field=field, remedy="store the secret as text"
        ) from error
    if not value:
        raise UsageError(f"{field}: {file} is empty", field=field, remedy="write the secret there")
    return value


def remember(value: str) -> str:
    """Have `scrub` replace this value from now on; returns it."""
    if len(value) >= SHORTEST:
        _known.add(value)
    return value


def scrub(text: str) -> str:
    """The text without any secret that was read here, or that looks like one."""
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


class ScrubbedFormatter(logging.Formatter):
    """Formats a record, its exception included, and takes secrets out of the whole."""

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines of one record."""
        return scrub(super().format(record))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log this process's records to standard error, without secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(ScrubbedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
