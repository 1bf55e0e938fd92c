"""A running scorer follows the book of rules, and fills its windows when it begins."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.scoring import ScoringActivities
from sickbay.contracts.rules import PresentRules
from sickbay.contracts.scoring import ScoringInput
from sickbay.domain.health import Standing
from sickbay.rules import read_rules
from sickbay.scoring.ruleset import digest_of, load_ruleset
from tests.scoring.test_activity import T0, Outside, bend

CONTENT = read_rules(None)
RULES = load_ruleset(CONTENT)
TEMP = next(r.name for r in RULES.signals if "DCGM_FI_DEV_GPU_TEMP" in r.metrics)
LIMIT_C = next(r.crit for r in RULES.signals if r.name == TEMP)


def with_limits(warn, crit, *, version="other"):
    """The shipped rules with other limits for the temperature."""
    signals = [
        {**s, "warn": warn, "crit": crit} if s["name"] == TEMP else s for s in CONTENT["signals"]
    ]
    return {**CONTENT, "version": version, "signals": signals}


class Book:
    def __init__(self, **now):
        self.now = PresentRules(**now)
        self.found = []

    async def present(self, *, now):
        return self.now

    async def differs(self, found):
        self.found += found


class Labels(Outside):
    """Also keeps which rules each saved health was scored with."""

    def __init__(self, names):
        super().__init__(names)
        self.labels = []

    async def save_health(self, node, *, rules, **more):
        await super().save_health(node, rules=rules, **more)
        self.labels.append(rules)


async def score(outside, *, ticks, book=None, source=None):
    outside.script[outside.reads + ticks] = outside.take_over
    times = replace(RULES.times, tick_s=0.001, event_watch_s=0.001)
    activities = ScoringActivities(
        source or outside, records=outside, repairs=outside, permits=outside, inventory=outside,
        clock=outside.clock, rule_book=book,
    )  # fmt: skip
    inp = ScoringInput("pool-a", dict(CONTENT), times=times, time_scale=1000.0)
    return await asyncio.wait_for(ActivityEnvironment().run(activities.score_pool, inp), 100)


@pytest.mark.slow
async def test_the_rules_on_record_decide_from_the_next_look_on():
    outside, book = Labels(["n1", "n2"]), Book()
    bend(outside, "n2", 3, GPU_TEMP=LIMIT_C - 30)()
    other = with_limits(10.0, 11.0)
    outside.script[4] = lambda: setattr(book, "now", PresentRules(active=other))
    await score(outside, ticks=8, book=book)
    assert outside.labels[0].startswith(RULES.version)
    assert outside.labels[-1].startswith("other@")
    assert digest_of(other)[:12] in outside.labels[-1]


async def test_rules_that_cannot_be_loaded_change_nothing():
    outside, broken = Labels(["n1"]), Book(active={"version": "x"}, shadow={"version": "y"})
    ended = await score(outside, ticks=6, book=broken)
    assert ended.reason == "superseded"
    assert set(outside.labels) == {RULES.label}


async def test_a_shadow_tells_the_book_alone():
    hot = bend(outside := Outside(["n1", "n2"]), "n2", 3, GPU_TEMP=LIMIT_C + 40)
    hot()
    book = Book(shadow=with_limits(LIMIT_C + 50, LIMIT_C + 60))
    await score(outside, ticks=60, book=book)
    (*_, last) = book.found
    assert (last.node, last.active, last.shadow) == ("n2", "quarantined", "healthy")
    assert {d.node for d in book.found} == {"n2"}
    assert {f.node for f in outside.faults} == {"n2"}


async def test_what_is_excepted_on_a_node_does_not_count_there_and_counts_elsewhere():
    outside = Outside(["n1", "n2"])
    for node in ("n1", "n2"):
        bend(outside, node, 3, GPU_TEMP=LIMIT_C + 40)()
    await score(outside, ticks=60, book=Book(excepted={"n1": frozenset({TEMP})}))
    assert {f.node for f in outside.faults} == {"n2"}
    last = {n: (h, s) for n, h, s in outside.saved}
    assert last["n1"][1] is Standing.HEALTHY
    assert last["n1"][0].confidence == 1.0


class Remembers:
    """A source that has the past: every moment's samples, as the outside makes them."""

    def __init__(self, outside, moments, *, fails=False):
        self.outside, self.moments, self.fails = outside, moments, fails

    async def read(self, nodes):
        return await self.outside.read(nodes)

    async def read_window(self, nodes, *, window_s, step_s):
        if self.fails:
            raise OSError("no answer")
        out = []
        for ago_s, dbe in self.moments:
            alive = {"TOTAL_ENERGY_CONSUMPTION": 1000 - ago_s}
            self.outside.bent[nodes[0], 2] = {"ECC_DBE_VOL_TOTAL": dbe, **alive}
            at = self.outside.at - timedelta(seconds=ago_s)
            out.append([replace(self.outside._sample(n), at=at) for n in nodes])
        return out


async def test_an_error_counted_while_no_scorer_ran_is_found_after_the_restart():
    outside = Outside(["n1", "n2"])
    source = Remembers(outside, [(60, 0), (45, 0), (30, 1), (15, 1)])
    await score(outside, ticks=3, source=source)
    assert {f.node for f in outside.faults} == {"n1"}


async def test_an_error_from_before_the_proven_return_is_not_found_again():
    outside = Outside(["n1", "n2"], returns={"n1": T0 - timedelta(seconds=20)})
    source = Remembers(outside, [(60, 0), (45, 0), (30, 1), (15, 1)])
    await score(outside, ticks=3, source=source)
    assert outside.faults == []


async def test_without_its_past_the_scorer_begins_all_the_same():
    outside = Outside(["n1"])
    await score(outside, ticks=4, source=Remembers(outside, [], fails=True))
    assert [(n, s) for n, _, s in outside.saved] == [("n1", Standing.HEALTHY)]
