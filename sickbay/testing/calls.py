"""What was asked of the outside, in order, and what it shall answer next."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any


class PhysicsBroken(Exception):
    """The code under test asked for something that no real machine or scheduler allows."""


@dataclass(frozen=True)
class Call:
    """One call of one port. `changes` says that it would have changed the outside."""

    verb: str
    node: str = ""
    detail: str = ""
    changes: bool = False


@dataclass
class CallLog:
    """All calls in order, and scripted answers by verb (`scheduler.close_gate`)."""

    calls: list[Call] = field(default_factory=list)
    answers: dict[tuple[str, str], deque[Any]] = field(default_factory=dict)

    def add(self, verb: str, *, node: str = "", detail: str = "", changes: bool = False) -> None:
        """Write a call down."""
        self.calls.append(Call(verb, node=node, detail=detail, changes=changes))

    def verbs(self, *, node: str | None = None, changes: bool = False) -> list[str]:
        """Verbs in order; of one node, or only those that change the outside."""
        return [
            c.verb
            for c in self.calls
            if (node is None or c.node == node) and (c.changes or not changes)
        ]

    def count(self, verb: str, *, node: str | None = None) -> int:
        """How often a verb was called."""
        return self.verbs(node=node).count(verb)

    def script(self, verb: str, *answers: Any, node: str = "") -> None:
        """Answer the next calls of `verb` (of one node, or of any) with these, one each.

        An exception among them is raised.
        """
        self.answers.setdefault((verb, node), deque()).extend(answers)

    def scripted(self, verb: str, *, node: str = "") -> Any | None:
        """The next scripted answer of this call, None when there is none.

        Raises:
            Exception: the scripted answer, when it is one.
        """
        for key in ((verb, node), (verb, "")):
            waiting = self.answers.get(key)
            if waiting:
                answer = waiting.popleft()
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return None
