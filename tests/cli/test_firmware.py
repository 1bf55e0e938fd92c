"""`sickbay firmware`: what is on its way, and a named person lets a frozen version go on."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from sickbay.cli.main import invoke
from sickbay.domain.firmware import RolloutKey, RolloutStage
from sickbay.settings import Settings, save_resolved
from sickbay.store.engine import open_store
from sickbay.store.out_of_band import StoreRollouts

KEY = RolloutKey("h200x8", "GPU_*", "2")
NAMED = "h200x8/GPU_*/2"


@pytest.fixture
async def state(tmp_path):
    """An installation that ran here once, with one version frozen by n001."""
    settings = Settings.model_validate({"state_dir": tmp_path, "simulator": {"enabled": True}})
    save_resolved(settings, tmp_path / "run.json")
    store = await open_store(settings.store_url)
    rollouts = StoreRollouts(store)
    now = datetime.now(UTC)
    await rollouts.reserve(KEY, node="n001", at=now)
    await rollouts.settle("n001", proven=False, why="the flash failed", at=now)
    await store.close()
    return tmp_path


async def run(state, capsys, *args):
    code = await asyncio.to_thread(invoke, ["firmware", *args, "--state", str(state)])
    out, err = capsys.readouterr()
    return code, out, err


async def test_a_frozen_version_is_shown_and_let_go_on(state, capsys):
    code, out, _ = await run(state, capsys, "list", "--json")
    (shown,) = json.loads(out)
    assert (code, shown["stage"], shown["why"]) == (0, "frozen", "n001: the flash failed")
    who = ("--by", "ops", "--reason", "new image")
    code, out, _ = await run(state, capsys, "unfreeze", NAMED, *who, "--json")
    assert (code, json.loads(out)[0]["stage"]) == (0, str(RolloutStage.NEW))
    code, _, err = await run(state, capsys, "unfreeze", NAMED, *who)
    assert (code, "not frozen" in err) == (3, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["thaw"], "unfreeze"),
        (["list", NAMED], "leave it away"),
        (["unfreeze"], "CLASS/COMPONENT/VERSION"),
        (["unfreeze", "x/y"], "CLASS/COMPONENT/VERSION"),
        (["unfreeze", NAMED], "--by"),
        (["unfreeze", "a/b/c", "--by", "me", "--reason", "r"], "sickbay firmware"),
    ],
)
async def test_wrong_input_is_one_line_and_exit_2(state, capsys, args, says):
    code, out, err = await run(state, capsys, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1
