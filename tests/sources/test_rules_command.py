"""`sickbay rules`: two people, a reason, a replay; and a way back."""

import asyncio
import gzip
import json
import sys
import textwrap
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from sickbay.cli import rule_replay
from sickbay.cli.main import invoke
from sickbay.domain.node import Node
from sickbay.errors import Refused, UsageError
from sickbay.rule_diff import differences
from sickbay.rules import read_rules
from sickbay.scoring.ruleset import digest_of
from sickbay.settings import Settings, save_resolved
from sickbay.store.engine import open_store
from sickbay.store.records import StoreRecords
from sickbay.store.rule_book import StoreRuleBook

SHIPPED = files("sickbay.scoring").joinpath("default_rules.toml").read_text(encoding="utf-8")
SIGNAL = tomllib.loads(SHIPPED)["signals"][0]["name"]
WHO = ("--by", "ana", "--approved-by", "ben", "--reason", "hotter hall")


@pytest.fixture
async def state(tmp_path):
    settings = Settings.model_validate({"state_dir": tmp_path, "simulator": {"enabled": True}})
    save_resolved(settings, tmp_path / "run.json")
    store = await open_store(settings.store_url)
    await StoreRecords(store).sync_inventory([Node("n001", "train", "g", "r", "c", ())])
    await store.close()
    return tmp_path


@pytest.fixture
def other(tmp_path):
    """A rule set that differs in its version and one threshold."""

    def make(version="2027.1", below="0.35"):
        text = SHIPPED.replace("quarantined_below = 0.3\n", f"quarantined_below = {below}\n")
        old = tomllib.loads(SHIPPED)["version"]
        path = tmp_path / f"rules-{version}.toml"
        path.write_text(text.replace(f'version = "{old}"', f'version = "{version}"'))
        return str(path)

    return make


async def run(state, capsys, *args):
    code = await asyncio.to_thread(invoke, ["rules", *args, "--state", str(state), "--json"])
    out, _ = capsys.readouterr()
    return code, json.loads(out)


async def active(state):
    store = await open_store(Settings.model_validate({"state_dir": state}).store_url)
    try:
        present = await StoreRuleBook(store).present(now=datetime.now(UTC))
    finally:
        await store.close()
    return present


async def test_a_rule_set_is_activated_by_two_people_and_taken_back(state, capsys, other):
    first, second = other("2027.1"), other("2027.2", "0.25")
    for file in (first, second):
        code, told = await run(state, capsys, "activate", file, *WHO, "--without-replay")
        assert code == 0
        assert (told["by"], told["approved_by"], told["reason"]) == ("ana", "ben", "hotter hall")
    assert (await active(state)).active == read_rules(Path(second))
    code, told = await run(state, capsys, "rollback", *WHO)
    assert (code, told["version"]) == (0, "2027.1")
    assert (await active(state)).active["version"] == "2027.1"
    code, listed = await run(state, capsys, "list")
    assert [c["version"] for c in listed["changes"]] == ["2027.1", "2027.2", "2027.1"]


async def test_what_was_activated_is_the_file_to_the_digit(state, capsys, other):
    file = other()
    await run(state, capsys, "activate", file, *WHO, "--without-replay")
    assert digest_of((await active(state)).active) == digest_of(read_rules(Path(file)))


@pytest.mark.parametrize(
    ("who", "code", "field"),
    [
        (("--by", "ana", "--approved-by", "Ana ", "--reason", "r"), 3, None),
        (("--by", "ana", "--reason", "r"), 2, "approved_by"),
        (("--by", "ana", "--approved-by", "ben"), 2, "reason"),
        (("--approved-by", "ben", "--reason", "r"), 2, "by"),
        (("--by", "ana", "--approved-by", "ben", "--reason", "  "), 2, "reason"),
    ],
)
async def test_one_person_alone_changes_nothing(state, capsys, other, who, code, field):
    ended, told = await run(state, capsys, "activate", other(), *who, "--without-replay")
    assert (ended, told["error"]["field"]) == (code, field)
    assert (await active(state)).active is None


async def test_a_change_is_replayed_or_said_to_be_not(state, capsys, other):
    code, told = await run(state, capsys, "activate", other(), *WHO)
    assert (code, told["error"]["field"]) == (2, "history")
    assert "--without-replay" in told["error"]["remedy"]


async def test_what_makes_no_sense_is_refused_and_the_running_one_stays(state, capsys, other):
    await run(state, capsys, "activate", other(), *WHO, "--without-replay")
    bad = other("bad", "0.95")
    for act in (("check", bad), ("activate", bad, *WHO, "--without-replay"), ("shadow", bad)):
        code, told = await run(state, capsys, *act)
        assert code == 2
        assert told["error"]["field"]
    assert (await active(state)).active["version"] == "2027.1"
    code, _ = await run(state, capsys, "activate", other(), *WHO, "--without-replay")
    assert code == 3


async def test_without_an_earlier_one_there_is_no_way_back(state, capsys, other):
    assert (await run(state, capsys, "rollback", *WHO))[0] == 3
    await run(state, capsys, "activate", other(), *WHO, "--without-replay")
    assert (await run(state, capsys, "rollback", *WHO))[0] == 3


async def test_the_difference_to_what_decides_now_is_shown(state, capsys, other):
    code, told = await run(state, capsys, "diff", other())
    changed = {d["key"]: (d["before"], d["after"]) for d in told}
    assert code == 0
    assert changed["thresholds.quarantined_below"] == ("0.3", "0.35")
    assert set(changed) == {"thresholds.quarantined_below", "version"}


def test_signals_are_compared_by_name_whatever_their_order():
    one = {"signals": [{"name": "a", "warn": 1}, {"name": "b", "warn": 2}]}
    two = {"signals": [{"name": "b", "warn": 3}, {"name": "a", "warn": 1}, {"name": "c"}]}
    found = {d.key: (d.before, d.after) for d in differences(one, two)}
    assert found == {
        "signals[b].warn": ("2", "3"),
        "signals[c].name": ("(absent)", "'c'"),
    }
    assert differences(one, one) == []


async def test_a_shadow_is_watched_until_it_is_ended(state, capsys, other):
    file, who = other(), ("--by", "ana", "--reason", "look")
    assert (await run(state, capsys, "shadow", file, *who))[0] == 0
    assert (await active(state)).shadow == read_rules(Path(file))
    assert (await active(state)).active is None
    assert (await run(state, capsys, "end-shadow", *who))[0] == 0
    assert (await active(state)).shadow is None


async def test_an_exception_ends_by_itself(state, capsys):
    who = ("--by", "ana", "--reason", "known riser")
    code, told = await run(state, capsys, "except", "n001", SIGNAL, "--days", "2", *who)
    assert (code, told["signal"]) == (0, SIGNAL)
    assert (await active(state)).excepted == {"n001": {SIGNAL}}
    store = await open_store(Settings.model_validate({"state_dir": state}).store_url)
    later = datetime.now(UTC) + timedelta(days=2, seconds=1)
    assert (await StoreRuleBook(store).present(now=later)).excepted == {}
    await store.close()


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("n999", SIGNAL), "node"),
        (("n001", "heat_of_the_moon"), "signal"),
        (("n001",), "signal"),
        (("n001", SIGNAL, "--days", "31"), "days"),
        (("n001", SIGNAL, "--days", "0"), "days"),
        (("n001", SIGNAL, "--days", "nan"), "days"),
    ],
)
async def test_an_exception_without_end_or_object_is_refused(state, capsys, args, field):
    who = ("--by", "ana", "--reason", "r")
    code, told = await run(state, capsys, "except", *args, *who)
    assert (code, told["error"]["field"]) == (2, field)


# --- the replay -------------------------------------------------------------------------------

REPLAYER = """
    import json, sys, tomllib
    rules = tomllib.load(open(sys.argv[sys.argv.index("--rules") + 1], "rb"))
    low = rules["thresholds"]["quarantined_below"]
    for line in open(sys.argv[1]):
        row = json.loads(line)
        if row.get("value", 1.0) < low:
            print(json.dumps({"t": row["t"], "node": row["node"], "action": "quarantine"}))
    print(json.dumps({"t": 0, "node": None, "action": "page"}))
    END
"""


@pytest.fixture
def command(tmp_path):
    def make(end='print(json.dumps({"summary": {}}))'):
        script = tmp_path / "replayer.py"
        script.write_text(textwrap.dedent(REPLAYER).replace("END", end))
        return (sys.executable, str(script))

    return make


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "history.jsonl"
    rows = [
        {"t": 0.0, "type": "tick"},
        {"t": 9.0, "node": "n1", "value": 0.32},
        {"t": 9.0, "node": "n2", "value": 0.1},
        {"t": 15 * 86_400.0, "type": "tick"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_replay_with_both_says_who_fails_anew(history, command, other):
    old, new = read_rules(None), read_rules(Path(other()))
    before, after = rule_replay.replay_both(
        history, old=old, new=new, least_days=14, command=command()
    )
    assert rule_replay.compare(before, after) == {
        "newly_failing": ["n1"], "newly_passing": [], "failing_before": 1, "failing_after": 2,
    }  # fmt: skip
    assert rule_replay.compare(after, before)["newly_passing"] == ["n1"]


def test_a_replay_that_does_not_end_well_is_no_replay(history, command):
    rules = read_rules(None)
    for end in ("", 'sys.exit("bad line 3")'):
        with pytest.raises(Refused, match=r"summary|bad line 3"):
            rule_replay.replay_both(
                history, old=rules, new=rules, least_days=14, command=command(end)
            )


def test_a_short_history_is_not_enough(history, tmp_path):
    rules = read_rules(None)
    with pytest.raises(UsageError, match=r"15\.0 days"):
        rule_replay.replay_both(history, old=rules, new=rules, least_days=16)
    packed = tmp_path / "h.gz"
    packed.write_bytes(gzip.compress(history.read_bytes()))
    assert rule_replay.days_of(packed) == 15.0
    packed.write_bytes(gzip.compress(history.read_bytes())[:20])
    with pytest.raises(UsageError, match="cannot be read"):
        rule_replay.days_of(packed)
    with pytest.raises(UsageError, match="cannot be read"):
        rule_replay.days_of(tmp_path / "nowhere")


def test_the_rule_set_that_is_replayed_is_the_one_to_the_digit(tmp_path):
    rules = read_rules(None)
    path = tmp_path / "again.toml"
    path.write_text(rule_replay._toml(rules), encoding="utf-8")
    assert digest_of(tomllib.loads(path.read_text())) == digest_of(rules)
