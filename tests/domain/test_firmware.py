"""Firmware goes to one canary first, and a version that failed stays where it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sickbay.domain.firmware import (
    FirmwareImage,
    FirmwareTarget,
    Rollout,
    RolloutKey,
    RolloutStage,
    failed,
    image_for,
    proven,
    reserve,
    unfrozen,
    wanted,
    withdrawn,
)

KEY = RolloutKey("hgx", "GPU_*", "2")
NODES = st.sampled_from([f"n{i}" for i in range(5)])


class Fleet(RuleBasedStateMachine):
    """Nodes ask, return proven, fail, leave unproven and people unfreeze, in any order."""

    @initialize()
    def begin(self):
        self.rollout = Rollout(KEY)
        self.proven_canary = False
        self.frozen = False

    @rule(node=NODES)
    def asks(self, node):
        before = self.rollout
        self.rollout, answer = reserve(before, node=node)
        if self.frozen:
            assert not answer.granted
            assert not answer.wait
            assert self.rollout == before
        if answer.granted:
            assert node in self.rollout.in_flight
            others = set(before.in_flight) - {node}
            # A second node joins only behind a proven canary.
            assert node in before.in_flight or not others or self.proven_canary
        else:
            assert self.rollout == before
            assert KEY.version in answer.why

    @rule(node=NODES)
    def returns_proven(self, node):
        canary = self.rollout.stage is RolloutStage.CANARY and self.rollout.canary == node
        self.rollout = proven(self.rollout, node=node)
        if canary:
            self.proven_canary = True

    @rule(node=NODES)
    def fails(self, node):
        if node in self.rollout.in_flight:
            self.frozen, self.proven_canary = True, False
        self.rollout = failed(self.rollout, node=node, why="proof")

    @rule(node=NODES)
    def leaves_unproven(self, node):
        self.rollout = withdrawn(self.rollout, node=node)

    @rule()
    def a_person_unfreezes(self):
        self.rollout = unfrozen(self.rollout)
        if self.frozen:
            self.frozen, self.proven_canary = False, False

    @invariant()
    def frozen_stays_frozen_until_a_person_unfreezes(self):
        assert (self.rollout.stage is RolloutStage.FROZEN) is self.frozen
        assert (self.rollout.stage is RolloutStage.PROVEN) is self.proven_canary

    @invariant()
    def a_canary_is_alone(self):
        if self.rollout.stage is RolloutStage.CANARY:
            assert self.rollout.in_flight == (self.rollout.canary,)


TestFleet = Fleet.TestCase


def image(component, version, node_class="*"):
    return FirmwareImage(component, version, node_class, "fw.bin", "0" * 64)


@given(st.dictionaries(st.sampled_from(["GPU_0", "GPU_1", "BMC"]), st.sampled_from(["", "1", "2"])))
def test_what_is_wanted_is_lacking_known_and_of_one_image(versions):
    images = (image("GPU_*", "2"), image("GPU_*", "1"), image("BMC", "2"))
    plan = wanted(versions, node_class="hgx", images=images)
    lacking = {c for c, v in versions.items() if v == "1"}
    assert (plan is None) is (not lacking)
    if plan is not None:
        assert plan.image.version == "2"
        assert set(plan.components) <= lacking
        assert all(plan.image.fits(c, node_class="hgx") for c in plan.components)


def test_a_target_needs_an_image_of_its_class_component_and_version():
    images = (image("GPU_*", "2", "hgx-*"), image("BMC", "2", "hgx-8"))
    found = image_for(FirmwareTarget("GPU_3", "2"), node_class="hgx-8", images=images)
    assert found is images[0]
    for target, node_class in (
        (FirmwareTarget("GPU_3", "3"), "hgx-8"),
        (FirmwareTarget("NIC_0", "2"), "hgx-8"),
        (FirmwareTarget("BMC", "2"), "hgx-4"),
    ):
        assert image_for(target, node_class=node_class, images=images) is None


@pytest.mark.parametrize("settle", [proven, withdrawn])
def test_a_node_that_is_not_in_flight_settles_nothing(settle):
    rollout, _ = reserve(Rollout(KEY), node="n1")
    assert settle(rollout, node="n2") == rollout
    assert failed(rollout, node="n2", why="x") == rollout
