"""Fake `dcgmi`: diag (3.x and 4.x layouts), health, version.

Verdicts are concluded here from physical state and measurements, by the rules and limits of the
real tool; the machine itself hands out none.
"""

import json

import dcgm_diag
import dcgm_health
import dcgm_layout
from sim_link import UNREACHABLE, Dead, Machine, Refusal, say

NO_ENGINE = (
    "Error: unable to establish a connection to the specified host: localhost\n"
    "Error: Unable to connect to host engine. Host engine connection invalid/disconnected."
)
BAD_PARAMETER = 254
NO_TEST = 198


def main(argv: list) -> int:
    """Run one command line; the exit status."""
    try:
        machine = Machine()
        state = machine.read()
        if argv[:1] == ["diag"]:
            code = _diag(machine, state, argv[1:])
            machine.ran("dcgmi", argv, code)
            return code
        if argv[:1] == ["health"]:
            return _health(machine, state, argv[1:])
        if argv[:1] in (["--version"], ["-v"]):
            _version(state)
            return 0
    except (Dead, Refusal):
        say(NO_ENGINE)
        return UNREACHABLE
    say(f"PARSE ERROR: Argument: {' '.join(argv)}\n             Couldn't find match for argument")
    return BAD_PARAMETER


def _version(state: dict) -> None:
    say("")
    say(f"dcgmi  version: {state['dcgm_version']}")


def _diag(machine: Machine, state: dict, argv: list) -> int:
    options = _options(argv)
    if options is None or "-r" not in options:
        say("PARSE ERROR: Required argument missing: run")
        return BAD_PARAMETER
    old = state["dcgm_version"].startswith("3.")
    tests, unknown = dcgm_diag.tests_of(options["-r"], old=old)
    if unknown:
        say(f'Error: requested test "{unknown}" was not found among possible test choices.')
        return NO_TEST
    indices = _indices(state, options.get("-i"))
    if indices is None:
        say("Error: Unable to complete diagnostic for group. Return: (-40) : Bad parameter passed")
        return BAD_PARAMETER
    results = dcgm_diag.run(machine, tests, indices, old=old)
    if "-j" in options:
        say(json.dumps(dcgm_layout.document(state, results, old=old), indent="\t"))
    else:
        say(dcgm_layout.plain(results))
    return dcgm_layout.exit_code(results)


def _health(machine: Machine, state: dict, argv: list) -> int:
    options = _options(argv)
    if options is None:
        say("PARSE ERROR: Argument")
        return BAD_PARAMETER
    if "-s" in options:
        machine.ask("watch")
        say("Health monitor systems set successfully.")
        return 0
    if "-c" not in options:
        say("PARSE ERROR: one of -s, -c is wanted")
        return BAD_PARAMETER
    if not state["watched"]:
        say("Error: Health watches not enabled. Please enable watches.")
        return 0
    document = dcgm_health.document(state)
    say(json.dumps(document, indent="\t") if "-j" in options else dcgm_health.plain(document))
    return 0


def _options(argv: list) -> dict | None:
    """Options by short name; None for one that is not known."""
    plain = {"-j": "-j", "--json": "-j", "-c": "-c", "--check": "-c", "--fail-early": "-e"}
    valued = {"-r": "-r", "--run": "-r", "-p": "-p", "--parameters": "-p", "-i": "-i"}
    valued.update({"--entity-id": "-i", "-s": "-s", "--set": "-s", "-g": "-g", "--group": "-g"})
    valued.update({"-n": "-n", "--expectedNumEntities": "-n", "--timeout": "-t", "--host": "-h"})
    found = {}
    words = list(argv)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name in plain:
            found[plain[name]] = ""
        elif name in valued and (equals or words):
            found[valued[name]] = value if equals else words.pop(0)
        else:
            return None
    return found


def _indices(state: dict, wanted: str | None) -> list | None:
    """The GPUs asked for; None for one that does not exist."""
    known = [gpu["index"] for gpu in state["gpus"]]
    if wanted is None:
        return known
    try:
        found = [int(word.removeprefix("gpu:")) for word in wanted.split(",")]
    except ValueError:
        return known if wanted in ("*", "gpu:*", "all") else None
    return found if set(found) <= set(known) else None
