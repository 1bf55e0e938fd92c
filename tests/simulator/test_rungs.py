"""Each rung of the ladder is what cures some fault; one world in this process, its time moved."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sickbay.simulator.config import DEFAULT_WEIGHTS, JobLoad, SimulatorConfig
from sickbay.simulator.engine import Engine
from sickbay.simulator.firmware import Image, family_of
from sickbay.simulator.hardware import VBIOS, Power
from sickbay.simulator.kinds import FaultKind
from sickbay.simulator.power import ResetType
from sickbay.simulator.world import NotNow, NotThere

SLOT, COMPONENT = "gpu3", "HGX_FW_GPU_SXM_4"


class Bench:
    """One node whose time only moves when it is told to."""

    def __init__(self, directory: Path) -> None:
        jobs = JobLoad(busy=0.0, median_h=5000.0, sigma=0.0)
        config = SimulatorConfig(dir=directory, nodes=1, pools=1, jobs=jobs, time_scale=0.001)
        self.engine = Engine(config)

    @property
    def node(self):
        return self.engine.world.nodes["n001"]

    def wait(self, seconds: float) -> None:
        # In steps: what becomes due is handled at about its own moment.
        for _ in range(20):
            self.engine.world.clock._start_h += seconds / 20 / 3600
            self.engine.advance()

    def power(self, kind: ResetType) -> bool:
        return self.engine.change(lambda: self.engine.power.act("n001", kind=kind))

    def faults(self) -> list[str]:
        return [d.kind for d in self.engine.world.defects.values()]

    def reset(self) -> None:
        bus_id = self.node.gpu(SLOT).bus_id
        try:
            self.engine.change(lambda: self.engine.treatments.reset("n001", bus_id=bus_id))
        except (NotNow, NotThere):
            return
        self.wait(120)

    def reboot(self) -> None:
        self.engine.change(lambda: self.engine.treatments.reboot("n001"))
        self.wait(1000)

    def cycle(self) -> None:
        self.power(ResetType.POWER_CYCLE)
        self.wait(1000)

    def flash(self) -> None:
        image = Image(family_of(COMPONENT), VBIOS)
        flasher = self.engine.flasher
        self.engine.change(lambda: flasher.begin("n001", targets=[COMPONENT], image=image))
        self.wait(1800)

    def swap(self) -> None:
        self.engine.change(lambda: self.engine.treatments.replace("n001", slot=SLOT))

    def climb(self) -> str:
        """The first rung after which no fault is left."""
        for rung in (self.reset, self.reboot, self.cycle, self.flash, self.swap):
            rung()
            if not self.faults():
                return rung.__name__
        return "none"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.engine.close()


RUNGS = {
    FaultKind.REMAP_PENDING: "reset",
    FaultKind.NVLINK_DOWN: "reset",
    FaultKind.GSP_HANG: "reboot",
    FaultKind.OFF_BUS: "reboot",
    FaultKind.OFF_BUS_COLD: "cycle",
    FaultKind.FIRMWARE_WEDGED: "flash",
    FaultKind.OFF_BUS_DEAD: "swap",
    FaultKind.REMAP_FAILURE: "swap",
    FaultKind.MARGINAL_MEMORY: "swap",
}


@pytest.mark.parametrize("kind", RUNGS)
def test_each_fault_is_cured_by_its_rung_and_by_none_below(bench, kind):
    bench.engine.inject("n001", kind=kind, slot=SLOT)
    assert bench.climb() == RUNGS[kind]
    assert bench.node.gpu(SLOT).visible
    assert bench.node.gpu(SLOT).lanes == 16


def test_the_demo_mix_needs_every_rung():
    assert {RUNGS[kind] for kind in DEFAULT_WEIGHTS if kind in RUNGS} == set(RUNGS.values())
    assert all(DEFAULT_WEIGHTS[kind] > 0 for kind in RUNGS)


def test_power_that_comes_back_at_once_leaves_the_charge(bench):
    bench.engine.inject("n001", kind=FaultKind.OFF_BUS_COLD, slot=SLOT)
    bench.power(ResetType.FORCE_OFF)
    bench.wait(6)
    assert bench.node.power is Power.OFF
    bench.power(ResetType.ON)
    bench.wait(1000)
    assert bench.node.up
    assert bench.faults() == [FaultKind.OFF_BUS_COLD]
    bench.power(ResetType.FORCE_OFF)
    bench.wait(30)
    bench.power(ResetType.ON)
    bench.wait(1000)
    assert bench.faults() == []


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(list(ResetType)), st.floats(min_value=0.0, max_value=90.0)),
        max_size=12,
    )
)
def test_power_is_where_it_was_last_asked_to_be(tmp_path_factory, steps):
    """Whatever is asked in whatever order: it settles, and each off has at most one on."""
    bench = Bench(tmp_path_factory.mktemp("power"))
    wanted = Power.ON
    try:
        for kind, wait_s in steps:
            try:
                bench.power(kind)
            except NotNow:
                continue
            finally:
                bench.wait(wait_s)
            off = kind in (ResetType.FORCE_OFF, ResetType.GRACEFUL_SHUTDOWN)
            wanted = Power.OFF if off else Power.ON
        bench.wait(3000)
        assert bench.node.power is wanted
        assert bench.node.up is (wanted is Power.ON)
        kinds = [row["kind"] for row in map(json.loads, bench.engine.world.lines)]
        switched = [kind for kind in kinds if kind in ("power_off", "power_on")]
        assert switched == ["power_off", "power_on"] * (len(switched) // 2) + (
            ["power_off"] if wanted is Power.OFF else []
        )
    finally:
        bench.engine.close()


@pytest.mark.parametrize("kind", [ResetType.POWER_CYCLE, ResetType.FORCE_RESTART])
def test_a_host_that_hangs_answers_nothing_until_its_power_is_used(bench, kind):
    bench.engine.inject("n001", kind=FaultKind.HOST_HANG, slot=None)
    bench.wait(24 * 3600)
    assert not bench.node.up
    assert bench.node.power is Power.ON
    with pytest.raises(NotNow, match="is down"):
        bench.engine.change(lambda: bench.engine.treatments.reboot("n001"))
    with pytest.raises(NotNow, match="is down"):
        bench.engine.inject("n001", kind=FaultKind.HOST_HANG, slot=None)
    boot = bench.node.boot_id
    bench.power(kind)
    bench.wait(1000)
    assert bench.node.up
    assert bench.node.boot_id != boot
    assert bench.faults() == []


def test_a_job_on_a_hung_host_is_believed_in_until_its_power_goes(bench):
    bench.engine.world.config.jobs.__dict__["busy"] = 1.0
    bench.engine.advance()
    assert bench.node.job is not None
    bench.engine.inject("n001", kind=FaultKind.HOST_HANG, slot=None)
    bench.engine.world.config.jobs.__dict__["busy"] = 0.0
    bench.wait(60)
    assert bench.engine.scheduler.view("n001")["jobs"]
    bench.cycle()
    assert bench.engine.scheduler.view("n001")["jobs"] == []
