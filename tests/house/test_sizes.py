"""Small enough to read: no file over 400 lines, no function over 50."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 50
# Written by a tool: length says nothing about how hard it is to read.
EXCEPTED = {
    "sickbay/store/migrations/versions": "migrations, as Alembic writes them",
}
FILES = sorted(
    path
    for room in ("sickbay", "workflows", "activities", "workers")
    for path in (ROOT / room).rglob("*.py")
    if not any(str(path.relative_to(ROOT)).startswith(name) for name in EXCEPTED)
)


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_and_its_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_FILE_LINES
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, functions)
    }
    assert {f: n for f, n in lengths.items() if n > MOST_FUNCTION_LINES} == {}


def test_every_exception_is_still_needed():
    assert [name for name in EXCEPTED if not (ROOT / name).exists()] == []
