"""What an act disturbs, what a rack bears, and who may lose power."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.node import Node, Treatment
from sickbay.domain.power import PowerState, Pulse, Sight, may_power_off
from sickbay.domain.radius import Lease, Limits, Load, radius, refusal

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def node(name, *, chassis="", power_unit=""):
    return Node(name, "p", "g", "r1", "hgx", chassis=chassis, power_unit=power_unit)


FLEET = (node("a", chassis="c1"), node("b", chassis="c1"), node("c", chassis="c2"), node("d"))


@given(st.sampled_from(Treatment), st.sampled_from(FLEET))
def test_the_node_itself_is_always_in_the_radius_and_only_power_reaches_others(treatment, patient):
    reached = radius(treatment, node=patient, fleet=FLEET)
    assert patient.id in reached
    cut = treatment in {Treatment.POWER_CYCLE, Treatment.REFLASH}
    shared = {n.id for n in FLEET if n.chassis and n.chassis == patient.chassis}
    assert set(reached) == ({patient.id} | shared if cut else {patient.id})


def test_nodes_without_a_known_chassis_do_not_share_one():
    assert radius(Treatment.POWER_CYCLE, node=node("x"), fleet=(node("x"), node("y"))) == ("x",)


def lease(holder, *, load=Load.POWER_CYCLE, rack="r1", unit="u1", left_s=60):
    return Lease(holder, load, holder, rack, unit, NOW + timedelta(seconds=left_s))


LIMITS = Limits(per_rack={Load.POWER_CYCLE: 2}, per_power_unit={Load.POWER_CYCLE: 1})


def test_the_refusal_says_what_runs_where():
    held = [lease("a", unit="u1"), lease("b", unit="u2")]
    asked = refusal(lease("c", unit="u3"), held=held, limits=LIMITS, now=NOW)
    assert asked == "waits: 2 power cycles run in rack r1"
    asked = refusal(lease("c", rack="r2", unit="u2"), held=held, limits=LIMITS, now=NOW)
    assert asked == "waits: 1 power cycles run in power unit u2"


def test_what_ran_out_another_load_oneself_and_a_nameless_place_do_not_count():
    def ask(**more):
        return refusal(lease("c", **more), held=held, limits=LIMITS, now=NOW)

    held = [lease("a", left_s=0), lease("b", left_s=-1)]
    assert ask() == ""
    held = [lease("a", load=Load.RESET), lease("c"), lease("c")]
    assert ask() == ""
    held = [lease(h, rack="", unit="") for h in "abd"]
    assert ask(rack="", unit="") == ""
    assert ask(load=Load.STRESS) == ""


LEASES = st.builds(
    lease,
    st.sampled_from("abcdefgh"),
    load=st.sampled_from(Load),
    rack=st.sampled_from(["", "r1", "r2"]),
    unit=st.sampled_from(["", "u1", "u2"]),
    left_s=st.sampled_from([-1, 60]),
)


@given(st.lists(LEASES, max_size=30))
def test_no_place_ever_bears_more_than_its_limit(asks):
    held = []
    for ask in asks:
        if refusal(ask, held=held, limits=LIMITS, now=NOW) == "":
            held = [x for x in held if x.holder != ask.holder] + [ask]
    running = [x for x in held if x.load is Load.POWER_CYCLE and x.until > NOW]
    for rack in ("r1", "r2"):
        assert sum(x.rack == rack for x in running) <= 2
    for unit in ("u1", "u2"):
        assert sum(x.power_unit == unit for x in running) <= 1


SIGHTS = st.builds(
    Sight,
    drained=st.booleans(),
    jobs=st.sampled_from([(), ("job7",)]),
    marked=st.booleans(),
    page=st.sampled_from(Pulse),
    power=st.sampled_from(PowerState),
)


@given(SIGHTS, st.booleans())
def test_power_is_cut_only_on_what_is_drained_or_seen_down_twice(sight, silent):
    leave = may_power_off(sight, silent=silent)
    assert bool(leave.why) is not leave.given
    if leave.given and not sight.drained:
        assert silent
        assert sight.marked
        assert sight.page is not Pulse.ANSWERS
        assert sight.page is Pulse.SILENT or sight.power is PowerState.OFF
        assert not sight.jobs or sight.power is PowerState.OFF
    if sight.drained:
        assert leave.given


def test_a_silent_worker_alone_is_no_reason():
    alone = Sight(drained=False, marked=True)
    assert not may_power_off(alone, silent=True).given
    assert may_power_off(replace(alone, page=Pulse.SILENT), silent=True).given
    off = replace(alone, power=PowerState.OFF, jobs=("job7",))
    assert may_power_off(off, silent=True).given
    assert not may_power_off(replace(off, page=Pulse.ANSWERS), silent=True).given
