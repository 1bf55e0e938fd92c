"""Runs the checks of a suite with the node's own tools, behind the CheckRunner port."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sickbay.domain.node import Node
from sickbay.domain.proof import Check, CheckName
from sickbay.domain.reading import FindingKind, Reading, Verdict
from sickbay.ports import CheckOutput
from sickbay.readers import dcgm_diag, dcgm_health, nvidia_smi
from sickbay.readers.documents import digest
from sickbay.tool_process import ToolRun, run_tool


class ToolCheckRunner:
    """Starts `nvidia-smi` and `dcgmi` and reads what they print."""

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        dcgmi: str = "dcgmi",
        nvidia_smi_tool: str = "nvidia-smi",
    ) -> None:
        self._env = env
        self._dcgmi = dcgmi
        self._smi = nvidia_smi_tool

    async def run(self, check: Check, *, node: Node, deadline_s: float) -> CheckOutput:
        """Run one check to its end or its deadline."""
        match check.name:
            case CheckName.GPU_STATE:
                run = await self._tool([self._smi, "-q", "-x"], deadline_s)
                reading = nvidia_smi.read_state(
                    run.text, exit_code=run.exit_code, expected=node.parts
                )
            case CheckName.NVLINK_STATE:
                run = await self._tool([self._smi, "nvlink", "-s"], deadline_s)
                reading = nvidia_smi.read_nvlink(run.text, exit_code=run.exit_code)
            case CheckName.DCGM_HEALTH:
                run = await self._health(deadline_s)
                reading = _states_only(dcgm_health.read(run.text, exit_code=run.exit_code))
            case CheckName.DCGM_DIAG:
                run = await self._tool(
                    [self._dcgmi, "diag", "-r", ",".join(check.tests), "-j"], deadline_s
                )
                reading = dcgm_diag.read(run.text, exit_code=run.exit_code)
        if run.exit_code is None:
            reading = Reading(
                reading.tool, Verdict.INCONCLUSIVE, why=run.why, digest=digest(run.text)
            )
        raw = run.text or run.why
        return CheckOutput(reading, raw=raw.encode("utf-8", errors="replace"))

    async def _health(self, deadline_s: float) -> ToolRun:
        """The watch's report; a watch that is off is switched on first."""
        run = await self._tool([self._dcgmi, "health", "-c", "-j"], deadline_s)
        if not dcgm_health.watches_are_off(run.text):
            return run
        await self._tool([self._dcgmi, "health", "-s", "a"], deadline_s)
        return await self._tool([self._dcgmi, "health", "-c", "-j"], deadline_s)

    async def _tool(self, argv: Sequence[str], deadline_s: float) -> ToolRun:
        return await run_tool(argv, env=self._env, deadline_s=deadline_s)


def _states_only(reading: Reading) -> Reading:
    """The reading without events: an Xid the watch still holds is no state of the hardware.

    The watch keeps samples for minutes, across a reset. Events newer than a treatment reach the
    repair from the kernel's log.
    """
    events = [f for f in reading.findings if f.reason.startswith("xid_")]
    if not events or reading.verdict is not Verdict.FAIL:
        return reading
    kept = tuple(f for f in reading.findings if f not in events)
    noted = tuple(replace(f, kind=FindingKind.TOOL, treatment=None) for f in events)
    if any(f.kind is FindingKind.HARDWARE for f in kept):
        return replace(reading, findings=(*kept, *noted))
    why = f"only past events in the watch's samples: {', '.join(f.reason for f in events)}"
    return replace(reading, verdict=Verdict.PASS, category=None, why=why, findings=(*kept, *noted))
