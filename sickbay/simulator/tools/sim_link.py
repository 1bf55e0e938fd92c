"""How a fake tool reaches the hardware of the node it stands on.

Standard library only, and little of it: every tool pays for its imports at each start.
"""

import json
import os
import socket
import sys
import time

UNREACHABLE = 255
ANSWER_TIMEOUT_S = 30.0


class Dead(Exception):
    """The machine does not answer, or went away while the tool ran."""


class Refusal(Exception):
    """The hardware says no; `code` says which no."""

    def __init__(self, code: str, says: str) -> None:
        super().__init__(says)
        self.code = code


class Machine:
    """The hardware of one node, through the simulator's socket."""

    def __init__(self, node: str = "") -> None:
        """This machine, or the one of that name when the tool starts something there."""
        self.node = node or os.environ.get("SICKBAY_SIM_NODE", "")
        self._boot_id: str | None = None
        path = os.environ.get("SICKBAY_SIM_SOCKET", "")
        try:
            # A socket's path is short; its folder's need not be.
            folder, name = os.path.split(path)
            os.chdir(folder or ".")
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(ANSWER_TIMEOUT_S)
            self._socket.connect(name)
        except OSError as error:
            raise Dead(str(error)) from error
        self._lines = self._socket.makefile("rb")

    def ask(self, op: str, **more: object) -> dict:
        """One request and its answer. Raises Dead, Refusal."""
        asked = {"op": op, "node": self.node, **more}
        if self._boot_id is not None:
            asked["boot_id"] = self._boot_id
        try:
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise Dead(str(error)) from error
        if not line:
            raise Dead("the connection was closed")
        answer = json.loads(line)
        if answer["ok"]:
            return answer
        # A node that is not there is a machine that does not answer; a GPU that is not is a no.
        if answer["error"] in ("down", "gone") or op == "read":
            raise Dead(answer["says"])
        raise Refusal(answer["error"], answer["says"])

    def read(self) -> dict:
        """The node's physical state; from here on only this boot of it counts."""
        state = self.ask("read")["node"]
        self._boot_id = state["boot_id"]
        return state

    def load(self, what: str, minutes: float, indices: list) -> dict:
        """Load one unit of some GPUs for a while; what each yields, by index."""
        answer = self.ask("exercise", what=what, minutes=minutes, indices=indices)
        time.sleep(answer["sleep_s"])
        return {gpu["index"]: gpu for gpu in answer["gpus"]}

    def wait(self, answer: dict) -> None:
        """Sleep as long as the hardware takes."""
        time.sleep(answer["sleep_s"])

    def ran(self, tool: str, argv: list, code: int) -> None:
        """Leave a row in the simulator's own log."""
        self.ask("tool_run", tool=tool, argv=argv, exit=code)


def say(text: str) -> None:
    """Print, whoever reads."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)
