"""Fake `systemctl`: knows `reboot`, and `is-system-running` for good measure."""

from sim_link import UNREACHABLE, Dead, Machine, Refusal, say


def main(argv: list) -> int:
    """Run one command line; the exit status."""
    words = [word for word in argv if not word.startswith("-")]
    try:
        machine = Machine()
        machine.read()
        if words == ["is-system-running"]:
            say("running")
            return 0
        if words != ["reboot"]:
            say(f"Unknown command verb {' '.join(words)}.")
            return 1
        machine.ask("reboot")
    except (Dead, Refusal):
        say("Failed to connect to bus: No such file or directory")
        return UNREACHABLE
    return 0
