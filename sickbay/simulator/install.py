"""Puts the fake tools into a directory for PATH.

Each is a few lines that run the tool's module with this interpreter, without site packages and
without the environment's Python settings: a tool must start in some ten milliseconds.
"""

import sys
from pathlib import Path

TOOLS = {
    "all_reduce_perf": "all_reduce_perf",
    "dcgmi": "dcgmi",
    "df": "df",
    "fio": "fio",
    "ibstat": "ibstat",
    "journalctl": "journalctl",
    "mpirun": "mpirun",
    "nvbandwidth": "nvbandwidth",
    "nvidia-smi": "nvidia_smi",
    "systemctl": "systemctl",
}
SOURCES = Path(__file__).with_name("tools")
# The kernel cuts a longer first line off.
LONGEST_SHEBANG = 120

_STUB = """#!{first}
{lead}import sys

sys.path.insert(0, {sources!r})
from {module} import main

sys.exit(main(sys.argv[1:]))
"""


def install_tools(directory: Path) -> Path:
    """Write the tools into `directory/bin`, and return that folder."""
    folder = directory / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    first, lead = f"{sys.executable} -SE", ""
    if len(first) > LONGEST_SHEBANG or " " in sys.executable:
        # The same file is read by both: for a shell the second line starts the interpreter.
        first, lead = "/bin/sh", f"''':'\nexec \"{sys.executable}\" -SE \"$0\" \"$@\"\n'''\n"
    for name, module in TOOLS.items():
        text = _STUB.format(first=first, lead=lead, sources=str(SOURCES), module=module)
        fresh = folder / f".{name}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(folder / name)
    return folder
