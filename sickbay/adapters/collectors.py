"""Reads a failed category's state with the node's own commands: the Collectors port.

The commands are the shipped book's, never a caller's, and only look.
"""

import shlex
import time
from collections.abc import Mapping

from sickbay.domain.node import Category
from sickbay.domain.suite_book import SHIPPED
from sickbay.tool_process import ToolRun, run_tool

COMMAND_S = 20.0
"""Longest that one command may take, seconds: on a sick node each of them may hang."""
MOST_CHARS = 200_000
"""Most of one command's output that is kept, characters."""
CUT = "[cut here: the output was longer]"


class ToolCollectors:
    """Runs the commands of a category one after the other.

    Args:
        env: the environment the commands run in; only allow-listed names belong in it.
        commands: what is read per category; the shipped book's without it.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        commands: Mapping[Category, tuple[str, ...]] | None = None,
    ) -> None:
        self._env = env
        self._commands = SHIPPED.collectors if commands is None else commands

    async def collect(self, category: Category, *, deadline_s: float) -> bytes:
        """The output of every command of this category, each under its command line."""
        ends_at = time.monotonic() + deadline_s
        parts = []
        for line in self._commands.get(category, ()):
            left_s = min(COMMAND_S, ends_at - time.monotonic())
            if left_s <= 0:
                parts.append(f"$ {line}\n[not run: no time left]\n")
                continue
            run = await run_tool(shlex.split(line), env=self._env, deadline_s=left_s)
            parts.append(f"$ {line}\n{_said(run)}\n")
        return "\n".join(parts).encode("utf-8", errors="replace")


def _said(run: ToolRun) -> str:
    text = run.text if len(run.text) <= MOST_CHARS else f"{run.text[:MOST_CHARS]}\n{CUT}"
    end = f"[exit status {run.exit_code}]" if run.exit_code is not None else f"[{run.why}]"
    return f"{text.rstrip()}\n{end}" if text.strip() else end
