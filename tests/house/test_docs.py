"""The docs are complete where they claim to be, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

from sickbay.contracts.firmware import TaskState
from sickbay.contracts.operations import Phase
from sickbay.contracts.repair import Work
from sickbay.contracts.steps import Action, DrainState, Outcome, Permission
from sickbay.domain.firmware import RolloutStage
from sickbay.domain.gate import HoldKind
from sickbay.domain.health import Standing
from sickbay.domain.node import Category, PartKind, Severity, Treatment
from sickbay.domain.power import PowerState, Pulse
from sickbay.domain.proof import CheckName
from sickbay.domain.radius import Load
from sickbay.domain.reading import FindingKind, Verdict
from sickbay.domain.repair import Ending, Stage, StageOutcome
from sickbay.domain.signal import Absence, SignalKind
from sickbay.domain.usage import Band
from sickbay.scoring.ruleset import Shape

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
LISTS = {
    "Stages": Stage,
    "Outcomes of a stage": StageOutcome,
    "Endings of a repair": Ending,
    "Outcomes of one attempt at an outside effect": Outcome,
    "Treatments": Treatment,
    "Actions the safety switches govern": Action,
    "What a safety switch says": Permission,
    "Standings": Standing,
    "Verdicts": Verdict,
    "Severities": Severity,
    "Categories": Category,
    "Kinds of hold": HoldKind,
    "States of a drain": DrainState,
    "Power states": PowerState,
    "Pulses": Pulse,
    "States of a flash": TaskState,
    "Phases of an operation out of band": Phase,
    "Stages of a rollout": RolloutStage,
    "Loads": Load,
    "Kinds of finding": FindingKind,
    "Kinds of part": PartKind,
    "Checks": CheckName,
    "Work that changes no serial": Work,
    "Kinds of signal": SignalKind,
    "Shapes": Shape,
    "Absences": Absence,
    "Bands of usable compute": Band,
}
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
RECORDS = sorted(p for p in DECISIONS.glob("*.md") if p.name != "README.md")


def name_of(path):
    return str(path.relative_to(ROOT))


def sections(text, level):
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchors(path):
    """Anchors of a page's headings, made the way code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", h.lower()) for h in headings)
    return {h.strip().replace(" ", "-") for h in plain}


@pytest.mark.parametrize("heading", LISTS)
def test_the_glossary_has_each_member_of_each_closed_list_and_no_other(heading):
    listed = sections((DOCS / "glossary.md").read_text(encoding="utf-8"), 3)
    text = re.split(r"^## ", listed[heading], flags=re.MULTILINE)[0]
    assert set(re.findall(r"`(\w+)`", text)) == {str(member) for member in LISTS[heading]}


def test_a_term_is_explained_once():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ", text, flags=re.MULTILINE)
    terms = [t.strip() for row in rows if row != "term" for t in row.split(",")]
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page):
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        missing_anchor = anchor and there.suffix == ".md" and there.exists()
        if not there.exists() or (missing_anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached_from_the_index():
    seen, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = LINK.findall(page.read_text(encoding="utf-8"))
        here = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:", t)]
        todo.extend((page.parent / path).resolve() for path in here)
    assert [name_of(p) for p in DOCS.rglob("*.md") if p not in seen] == []


def test_decisions_are_numbered_without_a_gap():
    numbers = [int(p.name[:4]) for p in RECORDS]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=lambda p: p.stem)
def test_a_decision_has_its_number_status_context_decision_and_consequences(record):
    text = record.read_text(encoding="utf-8")
    assert re.match(rf"# {record.name[:4]}: \S", text)
    status = r"^Status: (accepted|superseded by \d{4}), \d{4}-\d\d-\d\d$"
    assert re.search(status, text, flags=re.MULTILINE)
    parts = sections(text, 2)
    assert list(parts) == ["Context", "Decision", "Consequences"]
    assert all(len(part.split()) > 10 for part in parts.values())


def test_the_index_of_decisions_has_each_with_its_title():
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", index, flags=re.MULTILINE)
    assert [name for _, name, _ in rows] == [p.name for p in RECORDS]
    for number, name, title in rows:
        first = (DECISIONS / name).read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith(f"# {number}: ")
        shorter = title.split(",")[0].split(";")[0]
        assert first.removeprefix(f"# {number}: ").startswith(shorter)


@pytest.mark.parametrize("target", ["setup", "demo", "test", "check", "bench", "clean"])
def test_each_make_target_exists(target):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_continuous_integration_runs_the_command_the_readme_names():
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^make test\b", steps, flags=re.MULTILINE)
    assert "SICKBAY_REQUIRE_PARTS=1" in steps
