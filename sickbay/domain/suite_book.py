"""The check suites as data: what runs for which purpose and category, how long, what it catches.

The shipped book is `suites.toml` beside this module. It is part of the program and read once at
import, so that a running repair and its replay see one and the same book.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

from sickbay.domain.check import Check, CheckName
from sickbay.domain.node import Category
from sickbay.errors import UsageError

_TABLES = {
    "order",
    "levels",
    "purposes",
    "categories",
    "checks",
    "tests",
    "diag_limits_s",
    "collectors",
}
_CHECK_KEYS = {"limit_s", "judges", "catches", "loads", "parameters"}
_LOADS_FROM_LEVEL = 2
_REMEDY = "correct the suites' file"


class Purpose(StrEnum):
    """Why a suite runs."""

    DIAGNOSE = "diagnose"
    PROVE = "prove"
    ADMIT = "admit"
    BURN_IN = "burn_in"


@dataclass(frozen=True)
class CheckSpec:
    """What is known of one check.

    `limit_s` is its outer deadline in seconds; that of DCGM's tests is by their level. `judges` are
    the categories it can fail, `catches` patterns of the reasons it would have found, `loads` what
    works while it runs.
    """

    limit_s: float
    judges: frozenset[Category]
    catches: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Level:
    """Checks of one thoroughness, and the most seconds they may take together."""

    most_s: float
    checks: tuple[CheckName, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Owed:
    """What a fault of one category owes beside its level."""

    checks: tuple[CheckName, ...]
    tests: tuple[str, ...]
    under_load: bool


@dataclass(frozen=True)
class SuiteBook:
    """All suites. Made by `parse_suites`, which is where it is checked.

    `tests` has the level of each test of DCGM, `diag_limits_s` how long a run of a level may take.
    """

    order: tuple[CheckName, ...]
    levels: Mapping[str, Level]
    purposes: Mapping[Purpose, str]
    categories: Mapping[Category, Owed]
    checks: Mapping[CheckName, CheckSpec]
    tests: Mapping[str, int]
    diag_limits_s: Mapping[int, float]
    collectors: Mapping[Category, tuple[str, ...]]

    def level_of(self, purpose: Purpose) -> str:
        """The name of the level a purpose asks for."""
        return self.purposes[purpose]

    def checks_for(self, categories: Sequence[Category], *, purpose: Purpose) -> tuple[Check, ...]:
        """The checks of a purpose, with what the categories owe, in the book's order.

        The tests of the categories stand for those of the standard level; a deep or a quick level
        keeps its own beside them.
        """
        name = self.level_of(purpose)
        level = self.levels[name]
        owed = [self.categories[c] for c in categories]
        own = () if owed and name == "standard" else level.tests
        tests = tuple(dict.fromkeys((*own, *(t for o in owed for t in o.tests))))
        wanted = {*level.checks, *(check for o in owed for check in o.checks)}
        return tuple(
            Check(check, tests=tests if check is CheckName.DCGM_DIAG else ())
            for check in self.order
            if check in wanted
        )

    def limit_s(self, check: Check) -> float:
        """The check's outer deadline in seconds: beyond it the check hangs."""
        diag_s = self.diag_limits_s[self._diag_level(check)] if check.tests else 0.0
        return self.checks[check.name].limit_s + diag_s

    def catching(self, reason: str) -> tuple[CheckName, ...]:
        """The checks that would have found this reason, in the book's order."""
        return tuple(
            name
            for name in self.order
            if any(fnmatchcase(reason, pattern) for pattern in self.checks[name].catches)
        )

    def judging(self, category: Category) -> frozenset[CheckName]:
        """The checks that can fail a node for this category."""
        return frozenset(n for n, spec in self.checks.items() if category in spec.judges)

    def loads(self, check: Check) -> bool:
        """Whether something works while the check runs."""
        if check.name is CheckName.DCGM_DIAG:
            return self._diag_level(check) >= _LOADS_FROM_LEVEL
        return bool(self.checks[check.name].loads)

    def _diag_level(self, check: Check) -> int:
        """The level of DCGM that holds all of the check's tests; an unknown one is of the last."""
        last = max(self.diag_limits_s)
        return max((self.tests.get(test, last) for test in check.tests), default=1)


def parse_suites(text: str, *, name: str) -> SuiteBook:
    """The suites in a TOML text, checked.

    Args:
        text: the TOML text.
        name: what to call it in an error, e.g. its file name.

    Raises:
        UsageError: it is no TOML, names what does not exist, or breaks a rule of the suites.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(name, "toml", f"is not TOML: {error}") from error
    try:
        book = _book(found, name)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _wrong(name, "suites", f"cannot be read: {error!r}") from error
    for where, what in _broken(book):
        raise _wrong(name, where, what)
    return book


def _book(found: Mapping[str, Any], name: str) -> SuiteBook:
    unknown = sorted(found.keys() - _TABLES)
    if unknown:
        raise _wrong(name, unknown[0], f"unknown key {unknown[0]!r}")
    return SuiteBook(
        order=_names(found["order"]),
        levels={
            key: Level(float(one["most_s"]), _names(one["checks"]), tuple(one["tests"]))
            for key, one in found["levels"].items()
        },
        purposes={Purpose(key): str(level) for key, level in found["purposes"].items()},
        categories={
            Category(key): Owed(
                _names(one.get("checks", [])), tuple(one["tests"]), bool(one["under_load"])
            )
            for key, one in found["categories"].items()
        },
        checks={CheckName(key): _spec(one, name, key) for key, one in found["checks"].items()},
        tests={key: int(level) for key, level in found["tests"].items()},
        diag_limits_s={int(key): float(most) for key, most in found["diag_limits_s"].items()},
        collectors={
            Category(key): tuple(str(line) for line in lines)
            for key, lines in found.get("collectors", {}).items()
        },
    )


def _spec(one: Mapping[str, Any], name: str, key: str) -> CheckSpec:
    unknown = sorted(one.keys() - _CHECK_KEYS)
    if unknown:
        raise _wrong(name, f"checks.{key}.{unknown[0]}", f"unknown key {unknown[0]!r}")
    return CheckSpec(
        limit_s=float(one["limit_s"]),
        judges=frozenset(Category(c) for c in one["judges"]),
        catches=tuple(one.get("catches", ())),
        loads=tuple(one.get("loads", ())),
        parameters={k: str(v) for k, v in one.get("parameters", {}).items()},
    )


def _broken(book: SuiteBook) -> Iterable[tuple[str, str]]:
    """Each rule of the suites that this book breaks: where, and what is wrong."""
    for name in CheckName:
        if name not in book.checks:
            yield f"checks.{name}", "is missing"
        if book.order.count(name) != 1:
            yield "order", f"must name {name} once"
    for purpose in Purpose:
        if book.purposes.get(purpose) not in book.levels:
            yield f"purposes.{purpose}", "names no level"
    for category in Category:
        if category not in book.categories:
            yield f"categories.{category}", "is missing"
    tests = {t for level in book.levels.values() for t in level.tests}
    tests |= {t for owed in book.categories.values() for t in owed.tests}
    for test in sorted(tests - book.tests.keys()):
        yield "tests", f"{test} has no level"
    for number in sorted(set(book.tests.values()) - book.diag_limits_s.keys()):
        yield "diag_limits_s", f"level {number} has no time limit"
        return
    yield from _broken_suites(book)


def _broken_suites(book: SuiteBook) -> Iterable[tuple[str, str]]:
    """A suite fits its level's time, can judge its category, and loads what fails under load."""
    for purpose, level in book.purposes.items():
        choices: list[tuple[Category, ...]] = [()]
        if level == book.purposes[Purpose.PROVE]:
            choices += [(category,) for category in Category]
        for chosen in choices:
            checks = book.checks_for(chosen, purpose=purpose)
            takes_s = sum(book.limit_s(check) for check in checks)
            if not 0 < takes_s <= book.levels[level].most_s:
                yield f"levels.{level}.most_s", f"{_words(chosen)} may take {takes_s:g} s"
            if any(book.limit_s(check) <= 0 for check in checks):
                yield "checks", f"{_words(chosen)} has a check without a time limit"
            for category in chosen:
                yield from _unfit(book, checks, category)


def _unfit(
    book: SuiteBook, checks: Sequence[Check], category: Category
) -> Iterable[tuple[str, str]]:
    judges = [check for check in checks if check.name in book.judging(category)]
    if not judges:
        yield f"categories.{category}", "none of its checks can judge it"
    if book.categories[category].under_load and not any(map(book.loads, judges)):
        yield f"categories.{category}", "none of the checks that judge it loads the node"


def _names(found: Sequence[str]) -> tuple[CheckName, ...]:
    return tuple(CheckName(name) for name in found)


def _words(categories: Sequence[Category]) -> str:
    return f"the suite for {', '.join(categories) or 'no category'}"


def _wrong(name: str, where: str, what: str) -> UsageError:
    return UsageError(f"{name}: {where}: {what}", field=where, remedy=_REMEDY)


SHIPPED = parse_suites(
    resources.files("sickbay.domain").joinpath("suites.toml").read_text(encoding="utf-8"),
    name="suites.toml",
)
"""The suites this version of the program ships."""
