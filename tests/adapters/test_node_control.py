import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sickbay.adapters.node_control import NvidiaNodeControl
from sickbay.contracts.steps import Outcome
from sickbay.domain.node import Treatment
from sickbay.errors import NodeUnreadable

IN_USE = "GPU 00000000:1A:00.0: In use by another client"


class OneNode:
    def __init__(self, node):
        self._node = node

    async def node(self, node):
        return self._node if node == self._node.id else None


@pytest.fixture
def boot(tmp_path):
    path = tmp_path / "boot_id"
    path.write_text("boot-1\n")
    return path


@pytest.fixture
def control(tmp_path, node, boot):
    def build(env):
        return NvidiaNodeControl(
            node_id=node.id,
            inventory=OneNode(node),
            state_dir=tmp_path / "state",
            env=env,
            boot_id_file=boot,
        )

    return build


def smi(xml, reset="echo 'All done.'; echo \"GPU $3 was successfully reset.\"", code=0):
    return f"""echo "$@" >>"$ROOM/calls"
case "$1" in
  -q) echo '{xml}';;
  -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-a)";;
  -pm) echo "Enabled persistence mode for GPU $4.";;
  --gpu-reset) {reset}; exit {code};;
esac"""


async def finished(control, treatment, *, part, op="op-1", before="boot-1"):
    for _ in range(300):
        effect = await control.progress(
            treatment, part=part, operation_id=op, boot_id_before=before
        )
        if effect is not None:
            return effect
        await asyncio.sleep(0.02)
    raise AssertionError("it never ended")


def resets(tmp_path):
    lines = (tmp_path / "calls").read_text().splitlines()
    return [line for line in lines if line.startswith("--gpu-reset")]


@pytest.fixture
def both(state_xml):
    return state_xml({"00000000:1A:00.0": "GPU-a", "00000000:3B:00.0": "GPU-b"})


async def test_a_reset_names_its_gpu_and_happens_once_per_operation(
    tools, control, node, tmp_path, both
):
    mine = control(tools(nvidia_smi=smi(both)))
    part = node.part_in("gpu0")
    for _ in range(3):
        await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    effect = await finished(mine, Treatment.RESET, part=part)
    assert effect.outcome is Outcome.SUCCEEDED
    assert resets(tmp_path) == ["--gpu-reset -i 0000:1a:00"]
    again = control(tools())
    assert await finished(again, Treatment.RESET, part=part) == effect


async def test_two_operations_are_two_acts(tools, control, node, tmp_path, both):
    mine = control(tools(nvidia_smi=smi(both)))
    part = node.part_in("gpu0")
    for op in ("op-1", "op-2"):
        await mine.start(Treatment.RESET, part=part, operation_id=op)
        await finished(mine, Treatment.RESET, part=part, op=op)
    assert len(resets(tmp_path)) == 2


async def test_persistence_mode_is_off_for_the_reset_and_on_again_after_it(
    tools, control, node, tmp_path, both
):
    mine = control(tools(nvidia_smi=smi(both)))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    await finished(mine, Treatment.RESET, part=part)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[1:] == [
        "-pm 0 -i 0000:1a:00",
        "--gpu-reset -i 0000:1a:00",
        "-pm 1 -i 0000:1a:00",
    ]


async def test_persistence_mode_that_cannot_be_changed_is_no_obstacle(
    tools, control, node, tmp_path, both
):
    script = smi(both).replace(
        '-pm) echo "Enabled persistence mode for GPU $4.";;', "-pm) exit 4;;"
    )
    mine = control(tools(nvidia_smi=script))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    assert (await finished(mine, Treatment.RESET, part=part)).outcome is Outcome.SUCCEEDED


async def test_a_bus_id_that_drifted_does_not_reset_the_neighbour(
    tools, control, node, tmp_path, state_xml
):
    drifted = state_xml({"00000000:1A:00.0": "GPU-b", "00000000:3B:00.0": "GPU-a"})
    mine = control(tools(nvidia_smi=smi(drifted)))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    await finished(mine, Treatment.RESET, part=part)
    assert resets(tmp_path) == ["--gpu-reset -i 0000:3b:00"]


async def test_another_part_in_the_place_is_not_reset_for_it(
    tools, control, node, tmp_path, state_xml
):
    other = state_xml({"00000000:1A:00.0": "GPU-new", "00000000:3B:00.0": "GPU-b"})
    mine = control(tools(nvidia_smi=smi(other)))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    await finished(mine, Treatment.RESET, part=part)
    assert resets(tmp_path) == ["--gpu-reset -i GPU-a"]


async def test_a_refused_reset_is_permanent(tools, control, node, both):
    mine = control(tools(nvidia_smi=smi(both, reset=f"echo '{IN_USE}'", code=255)))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    effect = await finished(mine, Treatment.RESET, part=part)
    assert effect.outcome is Outcome.PERMANENT
    assert "in use" in effect.detail


async def test_a_killed_worker_neither_stops_nor_repeats_nor_forgets_the_act(
    tools, control, node, tmp_path, boot, both
):
    slow = 'sleep 0.6; echo "GPU $3 was successfully reset."'
    env = tools(nvidia_smi=smi(both, reset=slow))
    worker = textwrap.dedent(f"""
        import asyncio, os, signal
        from pathlib import Path
        from sickbay.adapters.node_control import NvidiaNodeControl
        from sickbay.domain.node import Part, PartKind, Treatment
        part = Part("gpu0", PartKind.GPU, "GPU-a", "165", "0000:1a:00")
        control = NvidiaNodeControl(node_id="n001", inventory=None, env={env!r},
            state_dir=Path({str(tmp_path / "state")!r}), boot_id_file=Path({str(boot)!r}))
        asyncio.run(control.start(Treatment.RESET, part=part, operation_id="op-1"))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    killed = subprocess.run([sys.executable, "-c", worker], timeout=30, check=False)
    assert killed.returncode == -signal.SIGKILL
    mine = control(env)
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    assert (await finished(mine, Treatment.RESET, part=part)).outcome is Outcome.SUCCEEDED
    assert len(resets(tmp_path)) == 1


async def test_a_supervisor_that_is_gone_without_a_status_is_ambiguous(
    tools, control, node, tmp_path, both
):
    mine = control(tools(nvidia_smi=smi(both, reset="exec sleep 30")))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    pid = await _written(tmp_path / "state" / "acts")
    assert (
        await mine.progress(
            Treatment.RESET, part=part, operation_id="op-1", boot_id_before="boot-1"
        )
        is None
    )
    os.killpg(pid, signal.SIGKILL)
    effect = await finished(mine, Treatment.RESET, part=part)
    assert effect.outcome is Outcome.AMBIGUOUS


async def test_a_reboot_is_done_when_another_boot_answers(tools, control, boot, both):
    mine = control(tools(systemctl='echo "$@" >>"$ROOM/reboots"', nvidia_smi=smi(both)))
    await mine.start(Treatment.REBOOT, part=None, operation_id="op-1")
    await asyncio.sleep(0.3)
    assert (
        await mine.progress(
            Treatment.REBOOT, part=None, operation_id="op-1", boot_id_before="boot-1"
        )
        is None
    )
    boot.unlink()
    with pytest.raises(NodeUnreadable):
        await mine.progress(
            Treatment.REBOOT, part=None, operation_id="op-1", boot_id_before="boot-1"
        )
    boot.write_text("boot-2\n")
    effect = await finished(mine, Treatment.REBOOT, part=None)
    assert effect.outcome is Outcome.SUCCEEDED


async def test_a_refused_reboot_is_permanent(tools, control, both):
    mine = control(tools(systemctl="exit 1", nvidia_smi=smi(both)))
    await mine.start(Treatment.REBOOT, part=None, operation_id="op-1")
    effect = await finished(mine, Treatment.REBOOT, part=None)
    assert effect.outcome is Outcome.PERMANENT


@pytest.mark.parametrize("treatment", [Treatment.POWER_CYCLE, Treatment.REFLASH, Treatment.RESET])
async def test_what_this_node_cannot_do_is_never_started(tools, control, tmp_path, both, treatment):
    mine = control(tools(nvidia_smi=smi(both), systemctl='touch "$ROOM/calls"'))
    await mine.start(treatment, part=None, operation_id="op-1")
    effect = await finished(mine, treatment, part=None)
    assert effect.outcome is Outcome.PERMANENT
    assert not (tmp_path / "calls").exists()


async def test_facts_put_parts_into_their_slots_by_uuid_then_by_place(
    tools, control, node, state_xml
):
    seen = state_xml({"00000000:1A:00.0": "GPU-new", "00000000:5D:00.0": "GPU-b"})
    facts = await control(tools(nvidia_smi=smi(seen))).facts()
    assert facts.boot_id == "boot-1"
    assert {p.slot: (p.uuid, p.serial) for p in facts.parts} == {
        "gpu0": ("GPU-new", "s-GPU-new"),
        "gpu1": ("GPU-b", "s-GPU-b"),
    }


async def test_a_lost_gpu_hides_none_of_the_others(tools, control, state_xml):
    """The query of all ends at the lost one; the list and a query by UUID do not."""
    alive = state_xml({"00000000:3B:00.0": "GPU-b"})
    lost = "Unable to determine the device handle for GPU 0000:1A:00.0: GPU is lost.  Reboot"
    script = f"""case "$*" in
  "-q -x") echo "{lost}"; exit 15;;
  -L) echo "{lost}"; echo "GPU 1: NVIDIA H200 (UUID: GPU-b)";;
  "-q -x -i GPU-b") echo '{alive}';;
  *) exit 2;;
esac"""
    facts = await control(tools(nvidia_smi=script)).facts()
    assert [(p.slot, p.uuid, p.serial) for p in facts.parts] == [("gpu1", "GPU-b", "s-GPU-b")]


async def test_a_node_that_shows_nothing_is_unreadable(tools, control):
    with pytest.raises(NodeUnreadable):
        await control(tools(nvidia_smi="echo 'No devices were found'; exit 6")).facts()


async def _written(acts: Path) -> int:
    for _ in range(200):
        for path in acts.glob("*.pid"):
            if text := path.read_text().strip():
                return int(text)
        await asyncio.sleep(0.02)
    raise AssertionError("no supervisor")


async def test_a_node_whose_every_gpu_is_lost_names_none(tools, control):
    lost = "Unable to determine the device handle for GPU 0000:1A:00.0: GPU is lost."
    with pytest.raises(NodeUnreadable, match="GPU is lost"):
        await control(tools(nvidia_smi=f"echo '{lost}'; exit 15")).facts()


# --- a reset that is refused because services hold the GPU ----------------------------------------

# The GPU is held while the host engine runs; a service is a file, and each call leaves a line.
HELD = """if [ -f "$ROOM/on/nvidia-dcgm.service" ]; then
  echo 'GPU 00000000:1A:00.0: In use by another client'; exit 255; fi
echo 'All done.'; echo "GPU $3 was successfully reset.\""""
SYSTEMCTL = """unit=$(eval echo "\\${$#}")
[ "$1" = is-active ] || echo "$1 $unit" >>"$ROOM/services"
case "$1" in
  is-active) [ -f "$ROOM/on/$unit" ];;
  stop) rm "$ROOM/on/$unit";;
  start) [ ! -f "$ROOM/broken-$unit" ] && : >"$ROOM/on/$unit";;
esac"""


def services(tmp_path, *names):
    (tmp_path / "on").mkdir(exist_ok=True)
    for name in names:
        (tmp_path / "on" / f"{name}.service").touch()


def running(tmp_path):
    return {path.name.removesuffix(".service") for path in (tmp_path / "on").iterdir()}


async def one_reset(control, tools, node, both, *, reset=HELD):
    mine = control(tools(nvidia_smi=smi(both, reset), systemctl=SYSTEMCTL))
    part = node.part_in("gpu0")
    await mine.start(Treatment.RESET, part=part, operation_id="op-1")
    return await finished(mine, Treatment.RESET, part=part)


async def test_a_reset_refused_by_services_stops_those_that_run_and_starts_them_again(
    tools, control, node, tmp_path, both
):
    services(tmp_path, "nvidia-dcgm", "nvidia-fabricmanager")
    effect = await one_reset(control, tools, node, both)
    assert effect.outcome is Outcome.SUCCEEDED
    assert "nvidia-dcgm.service" in effect.detail
    assert len(resets(tmp_path)) == 2, "a refused reset did nothing, so it may be tried once more"
    assert running(tmp_path) == {"nvidia-dcgm", "nvidia-fabricmanager"}
    order = (tmp_path / "services").read_text().splitlines()
    assert order == [
        "stop nvidia-dcgm.service",
        "stop nvidia-fabricmanager.service",
        "start nvidia-fabricmanager.service",
        "start nvidia-dcgm.service",
    ]


async def test_a_reset_with_nothing_in_its_way_stops_no_service(
    tools, control, node, tmp_path, both
):
    services(tmp_path, "nvidia-fabricmanager", "nvidia-persistenced")
    effect = await one_reset(control, tools, node, both)
    assert (effect.outcome, effect.detail) == (Outcome.SUCCEEDED, "reset")
    assert not (tmp_path / "services").exists()


async def test_services_come_back_when_the_second_try_is_refused_too(
    tools, control, node, tmp_path, both
):
    services(tmp_path, "nvidia-dcgm")
    refuse = f"echo '{IN_USE}'; exit 255"
    effect = await one_reset(control, tools, node, both, reset=refuse)
    assert effect.outcome is Outcome.PERMANENT
    assert len(resets(tmp_path)) == 2
    assert running(tmp_path) == {"nvidia-dcgm"}


async def test_another_refusal_stops_no_service(tools, control, node, tmp_path, both):
    services(tmp_path, "nvidia-dcgm")
    refuse = "echo 'GPU 0: Insufficient Permissions'; exit 4"
    effect = await one_reset(control, tools, node, both, reset=refuse)
    assert effect.outcome is Outcome.PERMANENT
    assert not (tmp_path / "services").exists()


async def test_a_service_that_does_not_start_again_is_named(tools, control, node, tmp_path, both):
    services(tmp_path, "nvidia-dcgm")
    (tmp_path / "broken-nvidia-dcgm.service").touch()
    effect = await one_reset(control, tools, node, both)
    assert effect.outcome is Outcome.SUCCEEDED
    assert "NOT started again: nvidia-dcgm.service" in effect.detail


async def test_c51_a_reboot_whose_answer_was_lost_is_read_off_the_boot_and_not_repeated(
    tools, control, boot, tmp_path, both
):
    """The command's supervisor dies with the machine: no status is ever written."""
    script = f'echo "$@" >>"$ROOM/reboots"; echo boot-2 >{boot}; kill -9 $PPID'
    env = tools(nvidia_smi=smi(both), systemctl=script)
    await control(env).start(Treatment.REBOOT, part=None, operation_id="op-1")
    effect = await finished(control(env), Treatment.REBOOT, part=None)
    assert effect.outcome is Outcome.SUCCEEDED
    await control(env).start(Treatment.REBOOT, part=None, operation_id="op-1")
    await asyncio.sleep(0.2)
    assert (tmp_path / "reboots").read_text().splitlines() == ["reboot"]


async def test_c51_a_reboot_that_was_lost_and_changed_no_boot_is_ambiguous_and_not_repeated(
    tools, control, boot, tmp_path, both
):
    env = tools(nvidia_smi=smi(both), systemctl='echo "$@" >>"$ROOM/reboots"; kill -9 $PPID')
    await control(env).start(Treatment.REBOOT, part=None, operation_id="op-1")
    effect = await finished(control(env), Treatment.REBOOT, part=None)
    assert effect.outcome is Outcome.AMBIGUOUS
    assert boot.read_text() == "boot-1\n"
    await control(env).start(Treatment.REBOOT, part=None, operation_id="op-1")
    await asyncio.sleep(0.2)
    assert (tmp_path / "reboots").read_text().splitlines() == ["reboot"]
