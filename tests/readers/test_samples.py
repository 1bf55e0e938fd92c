"""Real outputs of real tools, kept outside the project: what a correct reader concludes of each.

The folder is named by `SICKBAY_SAMPLES`; its `expected.jsonl` states the right conclusions.
"""

import json
import os
import re
from pathlib import Path

import pytest

from sickbay.readers import registry
from sickbay.readers.expectation import from_mapping
from sickbay.readers.parts import bus_id

NAME = "SICKBAY_SAMPLES"
FOLDER = Path(os.environ.get(NAME) or "/nonexistent")
LISTED = FOLDER / "expected.jsonl"
CASES = (
    [json.loads(line) for line in LISTED.read_text(encoding="utf-8").splitlines() if line.strip()]
    if LISTED.is_file()
    else []
)
READABLE = [case for case in CASES if case["tool"] in registry.names()]
FAILING = [case for case in READABLE if case["verdict_any_of"] == ["fail"]]


def reading_of(case):
    text = (FOLDER / case["file"]).read_bytes().decode("utf-8", errors="replace")
    expect = from_mapping(case["expect"] or {})
    return text, registry.read(case["tool"], text, exit_code=case["exit_code"], expect=expect)


def same_part(printed, wanted):
    """Compared without case; bus ids with a domain of four digits."""
    if printed is None or wanted is None:
        return printed == wanted
    mine, theirs = printed.lower(), wanted.lower()
    if bus_id(theirs) is not None:
        return bus_id(mine) == bus_id(theirs)
    # The beginning of a UUID names it.
    return mine == theirs or (len(theirs) >= 8 and theirs in mine)


def matches(finding, wanted):
    kinds = [wanted["kind"]] if isinstance(wanted["kind"], str) else wanted["kind"]
    return (
        finding.reason == wanted["reason"]
        and (wanted["part"] is None or same_part(finding.part, wanted["part"]))
        and (kinds is None or finding.kind in kinds)
        and (wanted["treatment"] is None or finding.treatment == wanted["treatment"])
    )


SIZES = {"K": 2**10, "M": 2**20, "G": 2**30}
SPELLING = re.compile(
    r"(?P<name>\w+?)(?P<peak> peak)?(?:@(?P<count>\d+)(?P<size>[KMG]))?(?: (?P<place>in|out)-\S+)?"
    r"(?: (?P<unit>ns))?"
)


def spelt_out(wanted):
    """`busbw_gbps@1G in-place` and a part `0,1` as the fields of a measurement."""
    said = SPELLING.fullmatch(wanted["name"])
    row = dict(wanted)
    row["name"] = said["name"] + ("_peak" if said["peak"] else "")
    row["unit"], row["placement"] = said["unit"], said["place"]
    row["size_bytes"] = int(said["count"]) * SIZES[said["size"]] if said["size"] else None
    if "," in (wanted["part"] or ""):
        row["part"], row["peer"] = wanted["part"].split(",")
    return row


def measured(reading, listed):
    wanted = spelt_out(listed)
    keys = ("part", "peer", "size_bytes", "placement", "unit")
    asked = {key: wanted[key] for key in keys if wanted.get(key) is not None}
    return [
        m.value
        for m in reading.measurements
        if m.name == wanted["name"]
        and all(
            same_part(getattr(m, k), v) if k in {"part", "peer"} else getattr(m, k) == v
            for k, v in asked.items()
        )
    ]


def forbidden(reading, case):
    """What `must_not` says in words a program can check."""
    said = []
    for sentence in case["must_not"]:
        treatments = {str(f.treatment) for f in reading.findings if f.treatment}
        if sentence.startswith("verdict ") and reading.verdict == sentence.split()[1]:
            said.append(sentence)
        if sentence.startswith("treatment ") and sentence.split()[1] in treatments:
            said.append(sentence)
        if sentence == "hardware finding" and reading.hardware_findings():
            said.append(sentence)
        if sentence == f"category {reading.category}":
            said.append(sentence)
    return said


@pytest.mark.skipif(not CASES, reason=f"{NAME} names no folder with an expected.jsonl")
@pytest.mark.parametrize("case", READABLE, ids=[case["file"] for case in READABLE])
def test_a_real_output_is_read_rightly(case, documented_reason):
    _, reading = reading_of(case)
    assert [f.reason for f in reading.findings if not documented_reason(f.reason)] == []
    assert reading.verdict in case["verdict_any_of"]
    if reading.verdict == "fail" and case["category_any_of"]:
        assert reading.category in case["category_any_of"]
    missing = [w for w in case["must_find"] if not any(matches(f, w) for f in reading.findings)]
    assert missing == []
    assert forbidden(reading, case) == []
    for wanted in case["measures"]:
        values = measured(reading, wanted)
        assert values, wanted
        tolerance = wanted.get("rel_tol", 0.01)
        assert any(v == pytest.approx(wanted["value"], rel=tolerance) for v in values), wanted


@pytest.mark.skipif(not CASES, reason=f"{NAME} names no folder with an expected.jsonl")
@pytest.mark.parametrize("case", READABLE, ids=[case["file"] for case in READABLE])
def test_a_real_output_is_recognised_or_read_by_nobody(case):
    text, _ = reading_of(case)
    assert registry.recognise(text) in {case["tool"], registry.OTHER}


@pytest.mark.skipif(not CASES, reason=f"{NAME} names no folder with an expected.jsonl")
@pytest.mark.parametrize("case", FAILING, ids=[case["file"] for case in FAILING])
def test_no_part_of_a_failing_output_passes(case):
    text, _ = reading_of(case)
    step = max(1, len(text) // 80)
    first = min(i for i in range(len(text) + 1) if text[:i].strip()) if text.strip() else 0
    passed = [
        cut
        for cut in range(first, len(text), step)
        # Lines that end are a whole log, and whole rows a whole list: nothing shows that more came.
        if text[cut - 1] != "\n"
        if registry.read(
            case["tool"],
            text[:cut],
            exit_code=case["exit_code"],
            expect=from_mapping(case["expect"] or {}),
        ).verdict
        == "pass"
    ]
    assert passed == []
