"""A rule set is whole or refused, with the key and the remedy."""

import copy
import json

import pytest

from sickbay.errors import UsageError
from sickbay.scoring.ruleset import load_ruleset


def test_the_digest_is_of_the_content_and_not_of_its_order(rule_content, rules):
    turned = dict(reversed(list(rule_content.items())))
    assert load_ruleset(turned).digest == rules.digest
    assert load_ruleset(json.loads(json.dumps(rule_content))).digest == rules.digest
    changed = copy.deepcopy(rule_content)
    changed["thresholds"]["degraded_below"] = 0.71
    assert load_ruleset(changed).digest != rules.digest
    assert rules.label.startswith(rules.version + "@")


def spoil(content, change):
    spoiled = copy.deepcopy(content)
    change(spoiled)
    return spoiled


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("version", lambda c: c.pop("version")),
        ("colour", lambda c: c.update(colour=1)),
        ("signals", lambda c: c.update(signals=[])),
        ("times.tick_s", lambda c: c["times"].update(tick_s="soon")),
        ("times.tick_s", lambda c: c["times"].update(tick_s=-1.0)),
        ("times.tock_s", lambda c: c["times"].update(tock_s=1.0)),
        ("thresholds", lambda c: c["thresholds"].update(degraded_below=0.2)),
        ("signals[sm_clock].crit", lambda c: clock(c).update(crit=3.0)),
        ("signals[sm_clock].warn", lambda c: clock(c).update(warn=7.0)),
        ("signals[sm_clock].min_effect", lambda c: clock(c).update(min_effect=0.0)),
        ("signals[sm_clock].category", lambda c: clock(c).update(category="soul")),
        ("signals[sm_clock].valid", lambda c: clock(c).update(valid=[5, 1])),
        ("signals[sm_clock].weight", lambda c: clock(c).update(weight=-1.0)),
        ("signals[sm_clock].wanted", lambda c: clock(c).update(wanted=1)),
        ("signals[category=performance].weight", lambda c: clock(c).update(weight=0.0)),
        ("signals[sm_clock].unit", lambda c: clock(c).pop("unit")),
        ("sm_clock", lambda c: c["signals"].append(dict(clock(c)))),
        ("nothing", lambda c: c["load"].update(signal="nothing")),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(rule_content, field, change):
    with pytest.raises(UsageError) as refused:
        load_ruleset(spoil(rule_content, change))
    assert refused.value.field == field
    assert refused.value.remedy


def clock(content):
    return next(s for s in content["signals"] if s["name"] == "sm_clock")
