"""Firmware images that may be flashed, and the rule that one canary goes before the rest.

A rollout is one version of one component on one node class. Its first node is the canary; no
second node is touched before the canary returned proven. A failed flash or a failed proof freezes
the rollout until a person unfreezes it, and then a canary goes first again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class FirmwareTarget:
    """The wanted version of one component of a node."""

    component: str
    version: str


@dataclass(frozen=True)
class FirmwareImage:
    """One allowed image.

    `component` and `node_class` may be patterns (`*`, `?`): one image serves eight GPUs. `source`
    is a path or an http(s) address; `sha256` is what its bytes must have.
    """

    component: str
    version: str
    node_class: str
    source: str
    sha256: str

    def fits(self, component: str, *, node_class: str) -> bool:
        """Whether it is for this component of this class."""
        return fnmatchcase(component, self.component) and fnmatchcase(node_class, self.node_class)


@dataclass(frozen=True)
class FlashPlan:
    """An image and the components of one node that it is for."""

    image: FirmwareImage
    components: tuple[str, ...]


class RolloutStage(StrEnum):
    """How far a version has come on a node class."""

    NEW = "new"
    CANARY = "canary"
    PROVEN = "proven"
    FROZEN = "frozen"


@dataclass(frozen=True)
class RolloutKey:
    """Which rollout: the class the nodes have, the component as the image names it, the version."""

    node_class: str
    component: str
    version: str


@dataclass(frozen=True)
class Rollout:
    """One version on its way; nodes in flight were reserved and are not yet proven or failed."""

    key: RolloutKey
    stage: RolloutStage = RolloutStage.NEW
    canary: str = ""
    in_flight: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Reservation:
    """Whether a node may be flashed now; `wait` tells a later yes from a no."""

    granted: bool
    why: str = ""
    wait: bool = False


# --- which image ----------------------------------------------------------------------------------


def image_for(
    target: FirmwareTarget, *, node_class: str, images: Sequence[FirmwareImage]
) -> FirmwareImage | None:
    """The allowed image of exactly this version for this component; None when there is none."""
    return next(
        (
            image
            for image in images
            if image.version == target.version
            and image.fits(target.component, node_class=node_class)
        ),
        None,
    )


def wanted(
    versions: Mapping[str, str], *, node_class: str, images: Sequence[FirmwareImage]
) -> FlashPlan | None:
    """The first image some component lacks, with all components that lack it; None when none does.

    The first image of the list that fits a component is the one it should have. A component
    whose version is unknown (empty) is never taken for one that lacks an image.
    """
    first = {
        component: next((i for i in images if i.fits(component, node_class=node_class)), None)
        for component in sorted(versions)
    }
    for image in images:
        lacking = tuple(
            component
            for component, chosen in first.items()
            if chosen == image and versions[component] not in {"", image.version}
        )
        if lacking:
            return FlashPlan(image, components=lacking)
    return None


# --- who may be flashed ---------------------------------------------------------------------------


def reserve(rollout: Rollout, *, node: str) -> tuple[Rollout, Reservation]:
    """Ask for one node's turn; asking again for a node in flight changes nothing."""
    if rollout.stage is RolloutStage.FROZEN:
        return rollout, Reservation(False, f"{_said(rollout)} is frozen: {rollout.why}")
    if node in rollout.in_flight:
        return rollout, Reservation(True)
    if rollout.stage is RolloutStage.PROVEN:
        return replace(rollout, in_flight=(*rollout.in_flight, node)), Reservation(True)
    if rollout.in_flight:
        others = ", ".join(rollout.in_flight)
        why = f"waits: {_said(rollout)} is tried on {others} first"
        return rollout, Reservation(False, why, wait=True)
    begun = replace(rollout, stage=RolloutStage.CANARY, canary=node, in_flight=(node,))
    return begun, Reservation(True)


def proven(rollout: Rollout, *, node: str) -> Rollout:
    """A node in flight returned proven; when it was the canary, the rest may follow."""
    if node not in rollout.in_flight:
        return rollout
    left = _without(rollout, node)
    if rollout.stage is RolloutStage.CANARY and rollout.canary == node:
        return replace(left, stage=RolloutStage.PROVEN)
    return left


def failed(rollout: Rollout, *, node: str, why: str) -> Rollout:
    """A flash or a proof of a node in flight failed: nothing more of this version is flashed."""
    if node not in rollout.in_flight:
        return rollout
    return replace(_without(rollout, node), stage=RolloutStage.FROZEN, why=f"{node}: {why}")


def withdrawn(rollout: Rollout, *, node: str) -> Rollout:
    """A node in flight was never flashed, or left unproven: it says nothing about the version."""
    if node not in rollout.in_flight:
        return rollout
    left = _without(rollout, node)
    if rollout.stage is RolloutStage.CANARY:
        return replace(left, stage=RolloutStage.NEW, canary="")
    return left


def unfrozen(rollout: Rollout) -> Rollout:
    """A person lets it go on: a canary goes first again."""
    if rollout.stage is not RolloutStage.FROZEN:
        return rollout
    return replace(rollout, stage=RolloutStage.NEW, canary="", why="")


def _without(rollout: Rollout, node: str) -> Rollout:
    return replace(rollout, in_flight=tuple(n for n in rollout.in_flight if n != node))


def _said(rollout: Rollout) -> str:
    key = rollout.key
    return f"{key.component} {key.version} on {key.node_class}"
