"""A suite on the node, with real processes: hanging tools, and what is read of a failed one."""

import asyncio
import os
import time
from datetime import UTC, datetime

import psutil
import pytest
from temporalio.testing import ActivityEnvironment

from activities import checks as room
from activities.checks import CheckActivities
from sickbay.adapters.collectors import ToolCollectors
from sickbay.adapters.tool_checks import ToolCheckRunner
from sickbay.contracts.steps import Permission, StepRequest, SuiteRequest
from sickbay.domain.node import Category
from sickbay.domain.proof import Check, CheckName, Suite
from sickbay.domain.reading import Reading, Verdict
from sickbay.ports import CheckOutput
from sickbay.testing import (
    MemoryEvidence,
    MemoryFleet,
    MemoryNodeControl,
    MemoryRecords,
    MemorySafety,
    some_nodes,
)

HEALTHY = '{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}'
LINK = "GPU {index}: NVIDIA H200 (UUID: GPU-{index})\n\t Link 0: {says}\n"


class Bench:
    """The activities over real processes: what stands in `bin` is what the node has installed."""

    def __init__(self, folder, *, runner=None, collectors=None):
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.env = {"PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"}
        nodes = some_nodes(1)
        self.node = nodes[0]
        fleet = MemoryFleet(nodes, now=lambda: datetime.now(UTC))
        self.evidence = MemoryEvidence()
        self.activities = CheckActivities(
            runner or ToolCheckRunner(self.env),
            control=MemoryNodeControl(fleet, node=self.node.id),
            evidence=self.evidence,
            safety=MemorySafety(mode=Permission.ACT),
            inventory=MemoryRecords({n.id: n for n in nodes}),
            collectors=collectors or ToolCollectors(self.env),
        )

    def tool(self, name, script):
        """Install a tool: a shell script."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    async def run(self, *names, limits=(), deadline_s=30.0):
        """Run a suite of these checks; its result."""
        step = StepRequest("r", "r/1", self.node.id, self.node.pool)
        suite = Suite("s", tuple(Check(name) for name in names))
        request = SuiteRequest(step, suite, deadline_s, deadline_s, limits_s=limits)
        answer = await ActivityEnvironment().run(self.activities.run_suite, request)
        return answer.result


async def gone(pid):
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_hanging_tool_is_inconclusive_and_suspect_its_group_ends_and_the_next_check_runs(
    tmp_path,
):
    bench = Bench(tmp_path)
    pids = tmp_path / "pids"
    bench.tool("ibstat", f"sleep 300 & echo $$ $! >{pids}; trap '' TERM; sleep 300")
    bench.tool("dcgmi", f"cat <<'E'\n{HEALTHY}\nE")
    result = await bench.run(CheckName.INFINIBAND, CheckName.DCGM_HEALTH, limits=(1.0, 20.0))
    hung, next_one = result.checks
    assert hung.verdict is Verdict.INCONCLUSIVE
    assert {f.reason for f in hung.findings} >= {"timeout", "check_hung"}
    assert "fabric" in next(f.detail for f in hung.findings if f.reason == "check_hung")
    assert next_one.verdict is Verdict.PASS
    assert result.verdict is Verdict.INCONCLUSIVE, "silence is no pass of the suite"
    leader, child = map(int, pids.read_text().split())
    assert await gone(leader)
    assert await gone(child)


async def test_a_check_has_its_own_limit_below_that_of_the_suite(tmp_path):
    bench = Bench(tmp_path)
    bench.tool("ibstat", "sleep 300")
    began = time.monotonic()
    result = await bench.run(CheckName.INFINIBAND, limits=(0.5,), deadline_s=600.0)
    assert time.monotonic() - began < 20
    assert result.verdict is Verdict.INCONCLUSIVE


async def test_a_missing_tool_is_no_suspicion_and_names_its_package(tmp_path):
    bench = Bench(tmp_path)
    bench.env["PATH"] = str(bench.bin)
    result = await bench.run(CheckName.STORAGE, limits=(5.0,))
    (missing,) = result.checks
    assert missing.verdict is Verdict.INCONCLUSIVE
    assert [f.reason for f in missing.findings] == ["tool_not_installed"]
    assert "comes with fio" in missing.why


class StuckRunner:
    """A runner that does not come back, whatever its tool does."""

    async def run(self, check, *, node, deadline_s, neighbour=None):
        del node, deadline_s, neighbour
        if check.name is CheckName.STORAGE:
            await asyncio.sleep(300)
        return CheckOutput(Reading("host", Verdict.PASS, "well"), raw=b"well")


async def test_a_runner_that_does_not_come_back_is_given_up_and_the_next_check_runs(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(room, "RUNNER_GRACE_S", 0.3)
    bench = Bench(tmp_path, runner=StuckRunner())
    result = await bench.run(CheckName.STORAGE, CheckName.HOST, limits=(0.2, 5.0))
    assert [c.verdict for c in result.checks] == [Verdict.INCONCLUSIVE, Verdict.PASS]
    assert "check_hung" in {f.reason for f in result.checks[0].findings}
    assert result.checks[0].evidence is not None


async def test_what_a_failed_category_needs_is_read_and_stored_before_the_suite_answers(tmp_path):
    bench = Bench(tmp_path)
    says = ["<inactive>", *["26.562 GB/s"] * (len(bench.node.parts) - 1)]
    links = "".join(LINK.format(index=i, says=one) for i, one in enumerate(says))
    bench.tool(
        "nvidia-smi",
        f"case \"$*\" in 'nvlink -s') cat <<'E'\n{links}E\n;; *) echo \"asked: $*\";; esac",
    )
    result = await bench.run(CheckName.NVLINK_STATE, limits=(20.0,))
    assert result.verdict is Verdict.FAIL
    assert result.failed_categories() == (Category.INTERCONNECT,)
    (ref,) = result.collected
    text = bench.evidence.stored[ref.sha256].decode()
    assert ref.kind == "collected:interconnect"
    assert "$ nvidia-smi topo -m\nasked: topo -m\n[exit status 0]" in text


async def test_nothing_is_collected_for_a_suite_that_did_not_fail(tmp_path):
    bench = Bench(tmp_path)
    bench.tool("dcgmi", f"cat <<'E'\n{HEALTHY}\nE")
    result = await bench.run(CheckName.DCGM_HEALTH, limits=(20.0,))
    assert (result.verdict, result.collected) == (Verdict.PASS, ())


@pytest.mark.parametrize("category", Category)
async def test_collectors_say_what_they_could_not_read_and_end_in_time(category, tmp_path):
    """A node without any of the tools: every command line is there, each with its end."""
    bare = ToolCollectors({"PATH": str(tmp_path)})
    text = (await bare.collect(category, deadline_s=20.0)).decode()
    assert text.count("$ ") >= 1
    assert text.count("cannot be started") == text.count("$ ")


async def test_a_hanging_collector_hides_nothing_of_the_others(tmp_path):
    commands = {Category.HOST: ("echo first", "sleep 300", "echo last")}
    hangs = ToolCollectors(dict(os.environ), commands=commands)
    began = time.monotonic()
    text = (await hangs.collect(Category.HOST, deadline_s=2.0)).decode()
    assert time.monotonic() - began < 15
    assert "first\n[exit status 0]" in text
    assert "no answer" in text
    assert "$ echo last\n[not run: no time left]" in text
