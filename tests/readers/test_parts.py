import pytest

from sickbay.domain.node import Node, Part, PartKind
from sickbay.readers.parts import bus_id, slot_of

# Slots in the order of the chassis, which is not the order of the bus.
NODE = Node(
    "n001", "pool-a", "g01", "r01", "h200x8",
    (
        Part("gpu0", PartKind.GPU, "GPU-aa", "1650", "0000:5d:00"),
        Part("gpu1", PartKind.GPU, "GPU-bb", "1651", "00000000:1A:00.0"),
        Part("nic0", PartKind.NIC, "", "n1", "0000:05:00"),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("part", "slot"),
    [
        ("0000:1a:00", "gpu1"),
        ("00000000:5D:00.0", "gpu0"),
        ("GPU-bb", "gpu1"),
        ("1650", "gpu0"),
        ("gpu0", "gpu0"),
        ("0", "gpu1"),
        ("1", "gpu0"),
        ("2", None),
        ("0000:ff:00", None),
        ("nvswitch0", None),
        ("", None),
        (None, None),
    ],
)
def test_every_name_a_tool_has_for_a_part_finds_its_slot_or_none(part, slot):
    assert slot_of(NODE, part) == slot


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("00000000:1A:00.0", "0000:1a:00"),
        ("0008:01:00", "0008:01:00"),
        ("000:BA:80.0", "0000:ba:80"),
        ("07:00", "0000:07:00"),
        ("gpu0", None),
        ("", None),
    ],
)
def test_a_bus_id_has_one_spelling(text, wanted):
    assert bus_id(text) == wanted
