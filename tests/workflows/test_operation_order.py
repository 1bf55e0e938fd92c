"""The operation ids of whole repairs, in order: the same on every replay, for ever."""

from sickbay.domain.node import Treatment


def summaries(history):
    """The operation ids that remote activities carry, in order, without the repair's own name."""
    found = []
    for event in history.events:
        if event.HasField("user_metadata") and event.user_metadata.summary.data:
            text = event.user_metadata.summary.data.decode().strip('"')
            if "/" in text and not text.startswith("node-repair"):
                found.append(text.partition("/")[2])
    return found


async def test_a_reset_cured_repair(start):
    async with start() as loop:
        handle = await loop.broken("n001", Treatment.RESET)
        view = await loop.ended()
        assert summaries(await handle.fetch_history()) == [
            "002-drain",
            "003-diagnose",
            "004-reset",
            "005-prove",
            "006-prove",
        ]
        steps = [(s.operation_id, s.stage) for s in loop.records.steps]
        name = view.repair_id
        assert steps == [
            (f"{name}/001-close_gate", "permit"),
            ("", "drain"),
            (f"{name}/003-diagnose", "diagnose"),
            (f"{name}/004-reset", "reset"),
            (f"{name}/005-prove", "prove"),
            (f"{name}/006-prove", "prove"),
            ("", "return"),
        ]
        assert list(loop.journals["n001"].entries) == [f"{name}/004-reset"]


async def test_the_fresh_boot_of_a_second_pass_has_an_operation_of_its_own(start):
    async with start() as loop:
        await loop.broken("n001", Treatment.REBOOT, treatment=Treatment.REBOOT)
        view = await loop.ended()
        assert list(loop.journals["n001"].entries) == [
            f"{view.repair_id}/004-reboot",
            f"{view.repair_id}/006-reboot",
        ]
