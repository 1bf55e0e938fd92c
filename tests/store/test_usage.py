"""Usable compute: the bands are all of the time, whatever order the ledger is read in."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.health import Standing
from sickbay.domain.usage import Band, NodeTime, Span, usage
from tests.store.conftest import T0, at

HOUR = (T0, at(60))
minutes = st.integers(min_value=-30, max_value=90)


@st.composite
def spans(draw, values):
    """Spans on a coarse grid, so that equal times are common."""
    found = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(minutes)
        length = draw(st.none() | st.integers(0, 60))
        end = None if length is None else at(start + length)
        found.append(Span(at(start), end, draw(values)))
    return found


gates = spans(st.booleans())
standings = spans(st.sampled_from(Standing))
planned = spans(st.just(True))
node_times = st.builds(NodeTime, st.integers(0, 8), gates, standings, planned)


def covered_minutes(found: list[Span]) -> int:
    """Minutes of the hour some span holds, counted one by one."""

    def holds(moment: datetime) -> bool:
        return any(s.start <= moment and (s.end is None or moment < s.end) for s in found)

    return sum(holds(at(m)) for m in range(60))


@given(st.lists(node_times, max_size=4))
def test_the_bands_are_all_the_time_the_gate_is_on_record(nodes):
    found = usage(nodes, start=HOUR[0], end=HOUR[1])
    owed = sum(n.gpus * covered_minutes(list(n.gate)) * 60 for n in nodes)
    assert found.total == pytest.approx(owed)
    shares = sum(found.share(band) for band in Band)
    assert shares == pytest.approx(1.0 if owed else 0.0)
    assert all(seconds >= 0 for seconds in found.gpu_seconds.values())


@given(node_times, st.randoms())
def test_the_order_of_the_ledger_does_not_matter_even_at_equal_times(node, random):
    def shuffled(rows):
        rows = list(rows)
        random.shuffle(rows)
        return rows

    again = NodeTime(
        node.gpus, shuffled(node.gate), shuffled(node.standing), shuffled(node.maintenance)
    )
    one, two = (usage([n], start=HOUR[0], end=HOUR[1]) for n in (node, again))
    assert one == two


@given(st.lists(node_times, max_size=3), st.integers(0, 60))
def test_two_halves_add_up_to_the_whole(nodes, cut):
    whole = usage(nodes, start=T0, end=at(60))
    parts = [usage(nodes, start=T0, end=at(cut)), usage(nodes, start=at(cut), end=at(60))]
    for band in Band:
        assert whole.gpu_seconds[band] == pytest.approx(sum(p.gpu_seconds[band] for p in parts))


@given(gates, standings)
def test_only_healthy_behind_an_open_gate_is_usable(gate, standing):
    sick = [Span(s.start, s.end, Standing.DEGRADED) for s in standing]
    shut = [Span(s.start, s.end, value=False) for s in gate]
    for node in (NodeTime(8, gate, sick), NodeTime(8, shut, standing)):
        assert usage([node], start=T0, end=at(60)).usable == 0


def one_node(standing: Standing, *, gate_open: bool, maintenance: bool = False) -> NodeTime:
    return NodeTime(
        8,
        [Span(T0, None, gate_open)],
        [Span(T0, None, standing)],
        [Span(T0, None, value=True)] if maintenance else (),
    )


@pytest.mark.parametrize(
    ("standing", "gate_open", "band"),
    [
        (Standing.HEALTHY, True, Band.USABLE),
        (Standing.HEALTHY, False, Band.HEALTHY_CLOSED),
        (Standing.DEGRADED, True, Band.SICK_OPEN),
        (Standing.QUARANTINED, True, Band.SICK_OPEN),
        (Standing.QUARANTINED, False, Band.OUT),
        (Standing.UNKNOWN, True, Band.UNKNOWN),
        (Standing.UNKNOWN, False, Band.UNKNOWN),
    ],
)
def test_each_standing_and_gate_has_its_band(standing, gate_open, band):
    found = usage([one_node(standing, gate_open=gate_open)], start=T0, end=at(60))
    assert found.share(band) == 1
    kept = usage([one_node(standing, gate_open=gate_open, maintenance=True)], start=T0, end=at(60))
    assert kept.share(Band.MAINTENANCE) == 1


def test_the_headline_is_given_with_and_without_unknown_and_maintenance():
    nodes = [
        one_node(Standing.HEALTHY, gate_open=True),
        one_node(Standing.QUARANTINED, gate_open=False),
        one_node(Standing.UNKNOWN, gate_open=True),
        one_node(Standing.HEALTHY, gate_open=False, maintenance=True),
    ]
    found = usage(nodes, start=T0, end=at(60))
    assert (found.usable, found.usable_of_known) == (0.25, 0.5)


def test_no_time_is_no_usage():
    node = one_node(Standing.HEALTHY, gate_open=True)
    for end in (T0, T0 - timedelta(hours=1)):
        found = usage([node], start=T0, end=end)
        assert (found.total, found.usable, found.usable_of_known) == (0, 0, 0)
