"""When sickbay itself is wrong: a broken reader, a scorer that fails everything, observe mode."""

import asyncio

import pytest

from sickbay.store.queries import page_rows, would_have_rows

SMALL = """
time_scale = 720

[simulator]
enabled = true
nodes = {nodes}
pools = {pools}
group_size = 4
seed = 9
faults = 0
technician = false

[budget]
allowance = 4
cap = 4
max_out = 4
{more}
"""


@pytest.fixture
def break_in_children(tmp_path, monkeypatch):
    """Have every process of the installation run a patch of ours before its own code."""

    def patch(source: str) -> None:
        home = tmp_path / "broken"
        home.mkdir()
        (home / "sitecustomize.py").write_text(source, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(home))

    return patch


def gates(f, *, kind: str) -> list[dict]:
    return [r for r in f.log() if r["kind"] == kind]


@pytest.mark.slow
async def test_a_broken_reader_fails_proofs_and_nothing_returns(fleet, break_in_children):
    """The diagnosis reader finds a fault in whatever it is given."""
    break_in_children(
        "import dataclasses\n"
        "from sickbay.domain.node import Category, Severity\n"
        "from sickbay.domain.reading import Finding, FindingKind, Verdict\n"
        "from sickbay.readers import dcgm_diag\n"
        "right = dcgm_diag.read\n"
        "def wrong(*args, **more):\n"
        "    found = Finding('1', 'faulty_memory', Severity.CRITICAL, FindingKind.HARDWARE,\n"
        "                    None, Category.MEMORY, 'broken on purpose')\n"
        "    return dataclasses.replace(right(*args, **more), verdict=Verdict.FAIL,\n"
        "                               findings=(found,))\n"
        "dcgm_diag.read = wrong\n"
    )
    more = '[policy]\navailable = ["reset", "reboot"]\n'
    async with fleet(SMALL.format(nodes=8, pools=1, more=more)) as f:
        await f.inject("n002", "ecc_uncorrectable", "gpu1")

        async def stuck() -> bool:
            return await f.stage("n002") == "needs_human"

        await f.until("the repair asks for a human", stuck, within_s=100)
        assert not gates(f, kind="gate_opened")
        assert not (await f.rows())["n002"].gate_open


@pytest.mark.slow
async def test_a_reader_that_fails_every_node_closes_no_more_gates_than_the_cap(
    fleet, break_in_children
):
    """The metrics reader sees a remap failure on every GPU of every node."""
    break_in_children(
        "import re\n"
        "from sickbay.readers import exposition\n"
        "right = exposition.PageReader.read\n"
        "def wrong(self, text, *args, **more):\n"
        "    text = re.sub(r'(ROW_REMAP_FAILURE{[^}]*}) 0', r'\\1 1', text)\n"
        "    return right(self, text, *args, **more)\n"
        "exposition.PageReader.read = wrong\n"
    )
    async with fleet(SMALL.format(nodes=32, pools=2, more="")) as f:

        async def paged() -> bool:
            pages = await page_rows(f.records.store)
            return {p.pool for p in pages if p.key.startswith("budget/")} == {"pool-a", "pool-b"}

        await f.until("both pools paged", paged, within_s=60)
        await asyncio.sleep(20)
        assert_never_more_closed_than(f, cap=4)
        storms = [p for p in await page_rows(f.records.store) if p.key.startswith("budget/")]
        assert len(storms) == 2, [(p.key, p.summary, p.detail) for p in storms]


def assert_never_more_closed_than(f, *, cap: int) -> None:
    """Recomputed from the simulator's own log: marks standing per pool at any moment."""
    pool_of = {f"n{i:03d}": "pool-a" if i <= 16 else "pool-b" for i in range(1, 33)}
    marks: dict[str, set[str]] = {}
    seen_any = 0
    for row in f.log():
        if row["kind"] == "gate_closed":
            marks.setdefault(row["node"], set()).add(row["mark"])
        elif row["kind"] == "gate_opened":
            marks.setdefault(row["node"], set()).discard(row["mark"])
        closed = [n for n, m in marks.items() if m]
        for pool in ("pool-a", "pool-b"):
            mine = sum(pool_of[n] == pool for n in closed)
            seen_any = max(seen_any, mine)
            assert mine <= cap, f"{pool}: {mine} gates closed at once"
    assert seen_any == cap, "the cap was never reached, so this test proved nothing"


@pytest.mark.slow
async def test_in_observe_mode_nothing_outside_is_touched(fleet):
    more = '[pools.pool-a]\nmode = "observe"\n'
    async with fleet(SMALL.format(nodes=8, pools=1, more=more)) as f:
        await f.inject("n001", "ecc_uncorrectable", "gpu1")
        await f.inject("n006", "off_bus", "gpu1")

        async def told() -> bool:
            rows = await would_have_rows(f.records.store)
            return {r.node for r in rows} == {"n001", "n006"}

        await f.until("both acts are recorded as withheld", told, within_s=60)
        await asyncio.sleep(3)
        outside = {"gate_closed", "gate_opened", "job_evicted", "gpu_reset", "reboot", "tool_run"}
        assert [r for r in f.log() if r["kind"] in outside] == []
        rows = await would_have_rows(f.records.store)
        assert {r.why for r in rows} == {"observe"}


@pytest.mark.slow
async def test_stop_holds_a_repair_in_flight_and_go_lets_it_on(fleet):
    from datetime import UTC, datetime

    async with fleet(SMALL.format(nodes=8, pools=1, more="")) as f:
        await f.records.set_stop(None, by="oncall", reason="test", at=datetime.now(UTC))
        await f.inject("n003", "ecc_uncorrectable", "gpu1")

        async def waits() -> bool:
            row = (await f.rows())["n003"]
            return row.stage == "permit"

        await f.until("the repair waits", waits, within_s=60)
        await asyncio.sleep(4)
        assert not gates(f, kind="gate_closed")
        await f.records.lift_stop(None, by="oncall", at=datetime.now(UTC))

        async def returned() -> bool:
            return bool(gates(f, kind="gate_opened"))

        await f.until("the node returns after go", returned, within_s=90)
