"""A part is held to the others of its node: what is far below them fails, and nothing else does."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sickbay.domain.reading import Measurement, Reading, Verdict
from sickbay.readers.peers import held_to_peers

GBPS = st.floats(1.0, 5000.0)


def reading(values, *, verdict=Verdict.PASS, unit="GB/s"):
    measured = tuple(Measurement("copy", str(i), v, unit) for i, v in enumerate(values))
    return Reading("nvbandwidth", verdict, why="2 tests measured", measurements=measured)


def slow(values, **more):
    return {f.part for f in held_to_peers(reading(values, **more)).hardware_findings()}


@given(st.lists(GBPS, min_size=4, max_size=16), st.data())
def test_one_part_at_half_of_equal_others_is_named_alone(values, data):
    equal = [values[0]] * len(values)
    index = data.draw(st.integers(0, len(values) - 1))
    equal[index] /= 2
    held = held_to_peers(reading(equal))
    assert held.verdict is Verdict.FAIL
    assert [f.part for f in held.hardware_findings()] == [str(index)]


@given(GBPS, st.lists(st.floats(0.91, 1.09), min_size=1, max_size=16))
def test_a_spread_of_a_tenth_is_no_fault(usual, spread):
    assert slow([usual * s for s in spread]) == set()


@given(st.lists(GBPS, min_size=4, max_size=16))
def test_the_unit_of_measure_does_not_matter(values):
    assert slow(values) == slow([v * 8 for v in values])


@given(st.lists(GBPS, max_size=3))
def test_too_few_peers_judge_nobody(values):
    assert slow(values) == set()


@given(st.lists(GBPS, max_size=16))
def test_latencies_and_runs_that_did_not_pass_are_left_as_they_are(values):
    assert slow(values, unit="ns") == set()
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        before = reading(values, verdict=verdict)
        assert held_to_peers(before) == before


def test_each_slow_part_is_named_once_with_its_numbers():
    one = reading([50, 50, 50, 50, 20])
    twice = replace(
        one,
        measurements=(
            *one.measurements,
            *(replace(m, name="copy back") for m in one.measurements),
        ),
    )
    (finding,) = held_to_peers(twice).hardware_findings()
    assert "20 GB/s" in finding.detail
    assert "50 GB/s" in finding.detail
