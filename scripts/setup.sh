#!/bin/sh
# Makes the virtual environment of this project, in .venv, with everything to run and test it.
# Needs Python >= 3.11 and a package index; uses uv when it is on PATH, pip otherwise.
# PYTHON=/path/to/python chooses the interpreter.
set -eu

cd "$(dirname "$0")/.."
venv=.venv
here=$venv/bin/python
check='import sys; sys.exit(sys.version_info < (3, 11))'

# Each candidate is run, not only found: a version manager's shim may be there and still fail.
find_python() {
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$name" >/dev/null 2>&1 && "$name" -c "$check" >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    echo "error: sickbay needs Python 3.11 or newer, and none was found on PATH." >&2
    echo "       Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
    exit 2
}

have_uv() { command -v uv >/dev/null 2>&1; }

# An environment made by uv has no pip: without uv such a one is made anew.
usable() {
    [ -x "$here" ] && "$here" -c "$check" >/dev/null 2>&1 &&
        { have_uv || "$here" -m pip --version >/dev/null 2>&1; }
}

if ! usable; then
    python=$(find_python)
    echo "making $venv with $python"
    if have_uv; then
        uv venv --quiet --clear --python "$python" "$venv"
    elif ! "$python" -m venv --clear "$venv"; then
        echo "error: $python cannot make a virtual environment." >&2
        echo "       Install its venv module (Debian, Ubuntu: python3-venv), or uv." >&2
        exit 2
    fi
fi

echo "installing sickbay and what it needs into $venv"
if have_uv; then
    uv pip install --quiet --python "$here" --editable '.[dev]'
else
    "$here" -m pip install --quiet --disable-pip-version-check --no-input --editable '.[dev]'
fi
