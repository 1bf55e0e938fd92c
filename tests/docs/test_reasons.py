"""The page of reasons has every reason a reader can give, each once, each spelt as a code."""

import ast
import re
from pathlib import Path

import pytest

from sickbay.readers import (
    dcgm_answers,
    dcgm_exporter,
    dcgm_health,
    dcgm_meaning,
    kernel_host,
    nvidia_smi_answers,
    nvidia_smi_state,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| ", PAGE, flags=re.MULTILINE)
READERS = sorted((ROOT / "sickbay" / "readers").glob("*.py"))
# Where a call takes the reason.
PLACE = {
    "tool_finding": 0,
    "Finding": 1,
    "_fault": 0,
    "_hardware": 1,
    "_configuration": 1,
    "_unavailable": 0,
    "_node_fault": 0,
}


def literals(node):
    """The codes in an expression; what is put into one may be a number, a word or an act."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [[node.value]]
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else None for p in node.values]
        if all(p is None or p == "_" for p in parts):
            return []
        return [["".join(p or fill for p in parts) for fill in ("7", "word", "reset")]]
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    return []


def named_in(path):
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = PLACE.get(name)
            if place is not None and len(node.args) > place:
                found += literals(node.args[place])
            found += [v for k in node.keywords if k.arg == "reason" for v in literals(k.value)]
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for one, value in zip(names, values, strict=False):
                    if getattr(one, "id", "") == "reason":
                        found += literals(value)
    return found


TABLES = {
    "errors of DCGM": {
        dcgm_meaning._REASON.get(name, name) for name, _, _ in dcgm_meaning.DCGM_ERRORS.values()
    },
    "sentences of DCGM": {reason for _, reason in dcgm_meaning._NOT_RUN},
    "answers of dcgmi": {r for _, r in dcgm_answers._SENTENCES} | set(dcgm_answers._EXITS.values()),
    "health": {reason for _, reason, _, _ in dcgm_health._SIGNS},
    "exporter": {s.reason for s in dcgm_exporter._STATES.values()}
    | {f"recovery_action_{name}" for name, _ in dcgm_exporter._ACTIONS.values()},
    "nvidia-smi": {reason for _, reason in nvidia_smi_answers._REFUSALS}
    | {reason for _, reason, _ in nvidia_smi_answers._SENTENCES}
    | set(nvidia_smi_answers._EXITS.values()),
    "recovery actions": {f"recovery_action_{name}" for name, _ in nvidia_smi_state._ASKED.values()},
    "kernel": {
        f"{row.reason}_7" if "(?P<code>" in row.pattern.pattern else row.reason
        for row in kernel_host._ROWS
    },
}


def test_each_reason_is_listed_once_and_spelt_as_a_code():
    assert len(ROWS) == len(set(ROWS))
    assert [r for r in ROWS if not re.fullmatch(r"[a-z0-9_]+", re.sub(r"<\w+>", "x", r))] == []


@pytest.mark.parametrize("table", TABLES)
def test_every_reason_of_a_table_is_documented(table, documented_reason):
    assert [reason for reason in sorted(TABLES[table]) if not documented_reason(reason)] == []


@pytest.mark.parametrize("path", READERS, ids=lambda p: p.stem)
def test_every_reason_named_in_a_reader_is_documented(path, documented_reason):
    missing = [
        spellings for spellings in named_in(path) if not any(map(documented_reason, spellings))
    ]
    assert missing == []
