"""Words and names this project does not use."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("sickbay", "workflows", "activities", "workers")
EVERYWHERE = (*PRODUCT, "tests", "docs", "benchmarks", "scripts", ".ci", "docker", "deploy")
TEXTS = {".py", ".md", ".toml", ".sh", ".mako", ".json", ".jsonl", ".txt", ".yaml", ".service"}
TEXTS |= {".node", ""}

VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|NotImplemented" r"Error)\b")
# A path of some machine, a registry's host, a word of how this was written: none helps a reader.
FOREIGN = re.compile(
    r"(?<![\w.])/(?:wo" r"rk|ro" r"ot|ho" r"me/\w+)/"
    r"|py" r"pi\.org|pythonho" r"sted\.org"
    r"|\bsub" r"agent|\bfacts/\w+\.md|\bDES" r"IGN(?:\.md)?\b|\bSTY" r"LE\.md",
)  # fmt: skip


def files(rooms, kinds):
    found = [path for room in rooms for path in (ROOT / room).rglob("*") if path.is_file()]
    top = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in {".md", ".toml", ""}]
    return sorted(
        p
        for p in (*found, *(top if "docs" in rooms else []))
        if p.suffix in kinds and "__pycache__" not in p.parts
    )


def name_of(path):
    return str(path.relative_to(ROOT))


def hits(path, pattern):
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"{number}: {line}" for number, line in enumerate(lines, 1) if pattern.search(line)]


def test_no_module_has_a_name_that_says_nothing():
    named = [p for p in files(PRODUCT, {".py"}) if VAGUE_NAMES & {p.stem, *p.parts}]
    assert [name_of(p) for p in named] == []


def test_nothing_in_the_product_is_left_unfinished():
    found = {name_of(p): hits(p, UNFINISHED) for p in files(PRODUCT, {".py", ".toml"})}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_text_points_outside_the_project():
    found = {name_of(p): hits(p, FOREIGN) for p in files(EVERYWHERE, TEXTS)}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("room", ["tests", "benchmarks"])
def test_tests_are_no_package(room):
    assert [name_of(p) for p in (ROOT / room).rglob("__init__.py")] == []
