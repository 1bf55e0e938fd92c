"""The page of health metrics: per node and per pool, from what is on record.

An unknown health has no value here: the series is absent, so that no average takes it for a number.
Label sets are bounded by the fleet and the closed lists; reasons beyond `MOST_REASONS` are `other`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sickbay.domain.health import UNKNOWN_HEALTH, Health, Standing

MOST_REASONS = 100
OTHER = "other"


@dataclass(frozen=True)
class NodeFigures:
    """One node as it stands on record. `entered` counts how often it came into each standing."""

    node: str
    pool: str
    health: Health = UNKNOWN_HEALTH
    standing: Standing = Standing.UNKNOWN
    entered: Mapping[str, int] | None = None


class _Page(Collector):
    def __init__(self, nodes: Sequence[NodeFigures]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterable[Metric]:
        yield from _per_node(self._nodes)
        yield from _per_pool(self._nodes)


def health_page(nodes: Sequence[NodeFigures]) -> str:
    """The page in Prometheus' text form."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(nodes))
    return generate_latest(registry).decode()


def _per_node(nodes: Sequence[NodeFigures]) -> Iterable[Metric]:
    where = ["node", "pool"]
    value = GaugeMetricFamily(
        "sickbay_node_health_value", "Health, 0 to 1; absent while unknown", labels=where
    )
    sure = GaugeMetricFamily(
        "sickbay_node_health_confidence",
        "Fresh wanted signals as a share of the wanted ones",
        labels=where,
    )
    score = GaugeMetricFamily(
        "sickbay_node_worst_category_score",
        "Score of the category that decides the health, 0 to 1",
        labels=[*where, "category"],
    )
    standing = GaugeMetricFamily(
        "sickbay_node_standing", "1 for the present standing", labels=[*where, "standing"]
    )
    reason = GaugeMetricFamily(
        "sickbay_node_reason_info", "1, labelled with the reason code", labels=[*where, "reason"]
    )
    moves = CounterMetricFamily(
        "sickbay_node_transitions", "Times a standing was entered", labels=[*where, "standing"]
    )
    kept = _kept_reasons(nodes)
    for n in nodes:
        here = [n.node, n.pool]
        sure.add_metric(here, n.health.confidence)
        standing.add_metric([*here, str(n.standing)], 1)
        reason.add_metric([*here, n.health.reason if n.health.reason in kept else OTHER], 1)
        if n.health.value is not None:
            value.add_metric(here, n.health.value)
            if n.health.worst is not None:
                score.add_metric([*here, str(n.health.worst)], n.health.value)
        for name, count in (n.entered or {}).items():
            moves.add_metric([*here, name], count)
    yield from (value, sure, score, standing, reason, moves)


def _per_pool(nodes: Sequence[NodeFigures]) -> Iterable[Metric]:
    labels = ["pool", "standing"]
    count = GaugeMetricFamily("sickbay_pool_nodes", "Nodes by standing", labels=labels)
    moves = CounterMetricFamily(
        "sickbay_pool_transitions", "Times a standing was entered, all nodes", labels=labels
    )
    sure = GaugeMetricFamily(
        "sickbay_pool_health_confidence", "Mean confidence of the nodes", labels=["pool"]
    )
    for pool in sorted({n.pool for n in nodes}):
        mine = [n for n in nodes if n.pool == pool]
        now = Counter(str(n.standing) for n in mine)
        ever: Counter[str] = Counter()
        for n in mine:
            ever.update(n.entered or {})
        for standing in Standing:
            count.add_metric([pool, str(standing)], now[str(standing)])
            moves.add_metric([pool, str(standing)], ever[str(standing)])
        sure.add_metric([pool], sum(n.health.confidence for n in mine) / len(mine))
    yield from (count, moves, sure)


def _kept_reasons(nodes: Sequence[NodeFigures]) -> set[str]:
    common = Counter(n.health.reason for n in nodes).most_common(MOST_REASONS)
    return {reason for reason, _ in common}
