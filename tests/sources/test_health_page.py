"""The page of health metrics: true, bounded, and silent about what is unknown."""

from datetime import UTC, datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families

from sickbay.dashboard.health_page import MOST_REASONS, NodeFigures, health_page
from sickbay.domain.health import Health, Standing
from sickbay.domain.node import Category, Node
from sickbay.store.engine import open_store
from sickbay.store.health_figures import HealthFigures
from sickbay.store.records import StoreRecords
from workers.dashboard import node_figures

T0 = datetime(2026, 12, 1, tzinfo=UTC)
GOOD = Health(1.0, 0.9, Category.COMPUTE, "min:compute")
SICK = Health(0.0, 1.0, Category.MEMORY, "hard_fail:xid_48", "xid", "gpu3", "double-bit error")


def samples(text):
    return {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def where(name, node, **more):
    labels = {"node": node, "pool": "train", **more}
    return (name, *sorted(labels.items()))


async def test_the_page_says_what_is_on_record(tmp_path):
    store = await open_store(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")
    records = StoreRecords(store)
    names = ("n1", "n2", "n3")
    await records.sync_inventory([Node(n, "train", "g", "r", "c", ()) for n in names])
    turns = [(GOOD, Standing.HEALTHY), (SICK, Standing.QUARANTINED), (SICK, Standing.QUARANTINED)]
    for minute, (health, standing) in enumerate([*turns, turns[0], turns[1]]):
        await records.save_health(
            "n1", health=health, standing=standing, at=T0 + timedelta(minutes=minute), rules="r"
        )
    await records.save_health("n2", health=GOOD, standing=Standing.HEALTHY, at=T0, rules="r")
    page = samples(health_page(await node_figures(records, HealthFigures(store))))
    await store.close()
    assert page[where("sickbay_node_health_value", "n1")] == 0.0
    assert page[where("sickbay_node_health_confidence", "n2")] == 0.9
    assert where("sickbay_node_health_value", "n3") not in page
    assert page[where("sickbay_node_standing", "n3", standing="unknown")] == 1
    assert page[where("sickbay_node_reason_info", "n1", reason="hard_fail:xid_48")] == 1
    assert page[where("sickbay_node_worst_category_score", "n2", category="compute")] == 1.0
    entered = where("sickbay_node_transitions_total", "n1", standing="quarantined")
    assert page[entered] == 2
    pool = {str(s): page["sickbay_pool_nodes", ("pool", "train"), ("standing", str(s))]
            for s in Standing}  # fmt: skip
    assert pool == {"healthy": 1, "quarantined": 1, "unknown": 1, "degraded": 0}


def test_reasons_and_series_stay_bounded():
    nodes = [
        NodeFigures(f"n{i}", "train", Health(0.5, 1.0, Category.HOST, f"made_up_{i}"))
        for i in range(3 * MOST_REASONS)
    ]
    page = samples(health_page(nodes))
    reasons = {dict(k[1:])["reason"] for k in page if k[0] == "sickbay_node_reason_info"}
    assert len(reasons) == MOST_REASONS + 1
    assert "other" in reasons
    assert len(page) < 10 * len(nodes)


def test_a_name_cannot_break_the_page():
    evil = NodeFigures('n"1\n', "train", GOOD)
    assert where("sickbay_node_health_value", 'n"1\n') in samples(health_page([evil]))


def test_an_empty_fleet_has_a_page():
    assert samples(health_page([])) == {}
