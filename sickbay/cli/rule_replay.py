"""Replays recorded days with two rule sets, by `sickbay replay`, and says who fails anew."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sickbay.errors import Refused, UsageError

DAY_S = 86_400.0
LONGEST_S = 3600.0
COMMAND = (sys.executable, "-P", "-m", "sickbay.cli.main", "replay")
FAILING = frozenset({"quarantine", "withhold"})


def replay_both(
    history: Path,
    *,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    least_days: float,
    command: Sequence[str] = COMMAND,
) -> tuple[set[str], set[str]]:
    """The nodes that fail under each of two rule sets at some moment of a history.

    Raises:
        UsageError: the history cannot be read, or is shorter than `least_days`.
        Refused: a replay did not come to its end.
    """
    days = days_of(history)
    if days < least_days:
        raise UsageError(
            f"{history} holds {days:.1f} days",
            field="history",
            remedy=f"record {least_days:g} days, or ask for fewer with --days",
        )
    return _failing(history, old, command), _failing(history, new, command)


def compare(before: set[str], after: set[str]) -> dict[str, Any]:
    """Who fails under one rule set and not under the other."""
    return {
        "newly_failing": sorted(after - before),
        "newly_passing": sorted(before - after),
        "failing_before": len(before),
        "failing_after": len(after),
    }


def days_of(history: Path) -> float:
    """How many days a history spans. Raises `UsageError`."""
    first = last = None
    try:
        for line in _lines(history):
            at_s = _seconds(line)
            if at_s is not None:
                first = at_s if first is None else first
                last = at_s
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{history}: cannot be read: {error}",
            field="history",
            remedy="name a history of JSON lines, or gzip of them",
        ) from error
    return 0.0 if first is None or last is None else max(0.0, last - first) / DAY_S


def _lines(history: Path) -> Iterator[str]:
    with history.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    if packed:
        with gzip.open(history, "rt", encoding="utf-8") as lines:
            yield from lines
    else:
        with history.open("rt", encoding="utf-8") as lines:
            yield from lines


def _seconds(line: str) -> float | None:
    try:
        at = json.loads(line)["t"]
        if isinstance(at, str):
            return datetime.fromisoformat(at).timestamp()
        return float(at)
    except (ValueError, KeyError, TypeError):
        return None


def _failing(history: Path, content: Mapping[str, Any], command: Sequence[str]) -> set[str]:
    with tempfile.TemporaryDirectory() as home:
        rules = Path(home) / "rules.toml"
        rules.write_text(_toml(content), encoding="utf-8")
        argv = [*command, str(history), "--rules", str(rules), "--json"]
        try:
            ran = subprocess.run(
                argv, capture_output=True, text=True, timeout=LONGEST_S, check=False,
                stdin=subprocess.DEVNULL, env=dict(os.environ),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"the replay did not end: {error}") from error
    if ran.returncode != 0:
        said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1:]
        raise Refused(f"the replay of {history} failed: {' '.join(said)}")
    failing, ended = set(), False
    for line in ran.stdout.splitlines():
        row = json.loads(line)
        ended = ended or "summary" in row
        if row.get("action") in FAILING and row.get("node"):
            failing.add(str(row["node"]))
    if not ended:
        raise Refused(f"the replay of {history} has no summary: it did not come to its end")
    return failing


def _toml(value: Mapping[str, Any]) -> str:
    """A rule set as TOML: every table and list inline, which any reader of TOML takes."""
    return "".join(f"{_key(k)} = {_inline(v)}\n" for k, v in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inline(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _key(name: str) -> str:
    return json.dumps(str(name), ensure_ascii=False)
