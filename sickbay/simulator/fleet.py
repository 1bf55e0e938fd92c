"""Builds the fleet of a configuration: names, identities, versions. All of it seeded."""

from sickbay.simulator.config import SimulatorConfig
from sickbay.simulator.draws import Draws
from sickbay.simulator.hardware import IDLE_W, MJ_PER_WH, Gpu, Nic, Node, Ramp

# An eight-GPU baseboard's usual bus numbers; further slots go on from there.
_BUSES = (
    *("1A", "3B", "4C", "5D", "9A", "AB", "BA", "DB"),
    *("1B", "3C", "4D", "5E", "9B", "AC", "BB", "DC"),
)
_DCGM4 = ("4.2.3", "4.5.1", "4.6.0")
_DCGM3 = ("3.3.7", "3.3.9")


def build_fleet(config: SimulatorConfig, *, draws: Draws) -> list[Node]:
    """All nodes of a fleet that never ran."""
    return [_node(config, number, draws=draws) for number in range(config.nodes)]


def new_gpu(node: str, *, slot: str, generation: int, draws: Draws) -> Gpu:
    """A part fresh from the box: the generation counts the parts a slot has held."""
    rng = draws.keyed("fleet", node, slot, generation)
    digits = f"{rng.getrandbits(128):032x}"
    cut = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    bus = _BUSES[int(slot.removeprefix("gpu"))]
    return Gpu(
        slot=slot,
        uuid="GPU-" + "-".join(cut),
        serial=f"165{rng.randrange(10**10):010d}",
        bus_id=f"00000000:{bus}:00.0",
        phase=rng.random() * 6.28,
        generation=generation,
        # Switched on and idle; a part that is put in later starts to count at its first boot.
        energy_mj=Ramp(rate_h=IDLE_W * MJ_PER_WH),
    )


def new_nic(node: str, *, slot: str, generation: int, draws: Draws) -> Nic:
    """A NIC fresh from the box."""
    rng = draws.keyed("fleet", node, slot, generation)
    return Nic(slot=slot, serial=f"MT24{rng.randrange(10**8):08d}", generation=generation)


def boot_id(node: str, *, boots: int, draws: Draws) -> str:
    """The id of a node's n-th boot, as the kernel spells it."""
    digits = f"{draws.keyed('boot', node, boots).getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _node(config: SimulatorConfig, number: int, *, draws: Draws) -> Node:
    name = f"n{number + 1:03d}"
    pool = number * config.pools // config.nodes
    rng = draws.keyed("fleet", name)
    versions = _DCGM3 if rng.random() < config.dcgm3_share else _DCGM4
    count = config.gpus_per_node
    return Node(
        name=name,
        pool=f"pool-{_letters(pool)}",
        group=f"g{_group(config, number):02d}",
        rack=f"r{number // config.nodes_per_rack + 1:02d}",
        node_class=f"h200x{count}",
        dcgm_version=rng.choice(versions),
        gpus=[new_gpu(name, slot=f"gpu{i}", generation=0, draws=draws) for i in range(count)],
        nics=[new_nic(name, slot=f"nic{i}", generation=0, draws=draws) for i in range(count)],
    )


def _group(config: SimulatorConfig, number: int) -> int:
    """Groups count through the fleet and begin anew with each pool."""
    before = 0
    for pool in range(config.pools):
        first = -(-pool * config.nodes // config.pools)
        last = -(-(pool + 1) * config.nodes // config.pools)
        if number < last:
            return before + (number - first) // config.group_size + 1
        before += -(-(last - first) // config.group_size)
    return before


def _letters(number: int) -> str:
    text = ""
    while True:
        text = chr(ord("a") + number % 26) + text
        number = number // 26 - 1
        if number < 0:
            return text
