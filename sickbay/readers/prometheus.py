"""Reads answers of Prometheus' HTTP API, and makes one metrics page per node of them.

The page has the text form of dcgm-exporter, so that everything behind it is the same for both ways.
A sample whose age is not known, or is beyond the limit, stays on the page as NaN: its part is then
seen, without a number. To leave the part out would read as a GPU that fell off the bus.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_PORT = re.compile(r"^(.+?)(?::\d+)?$")
_PLAIN = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
Key = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and (evaluated at, value as text)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, str], ...]

    @property
    def key(self) -> Key:
        """What tells it from the other series of its metric."""
        return frozenset((k, v) for k, v in self.labels.items() if k != "__name__")


@dataclass(frozen=True)
class LabelMap:
    """Which labels say what; of several names the first one a series has counts.

    `node` is matched against `node_pattern`, whose first group is the node's id on record.
    """

    node: tuple[str, ...] = ("Hostname", "hostname", "node", "instance")
    node_pattern: re.Pattern[str] = _PORT
    uuid: tuple[str, ...] = ("UUID", "uuid")
    index: tuple[str, ...] = ("gpu",)
    bus_id: tuple[str, ...] = ("pci_bus_id",)
    slice_id: tuple[str, ...] = ("GPU_I_ID",)

    def node_of(self, labels: Mapping[str, str]) -> str | None:
        """The node a series speaks of, None when it does not say."""
        match = self.node_pattern.search(_first(labels, self.node))
        return match.group(1) if match else None

    def head(self, metric: str, labels: Mapping[str, str]) -> str:
        """Name and labels of the page's line for a series."""
        told = {
            "UUID": _first(labels, self.uuid),
            "gpu": _first(labels, self.index),
            "pci_bus_id": _first(labels, self.bus_id),
            "GPU_I_ID": _first(labels, self.slice_id),
        }
        inside = ",".join(f'{k}="{v.translate(_PLAIN)}"' for k, v in told.items() if v)
        return f"{metric}{{{inside}}}"


@dataclass
class NodePage:
    """What Prometheus has of one node at one moment.

    `youngest_s` is the age of its newest sample, infinite when it has none whose age is known.
    """

    youngest_s: float = math.inf
    lines: list[tuple[float, str]] = field(default_factory=list)

    def text(self) -> str:
        """The page; of one line told twice the younger one stands last, and counts."""
        return "".join(line for _, line in sorted(self.lines, key=lambda aged: -aged[0]))


def parse_answer(body: bytes) -> tuple[Series, ...]:
    """The series of a vector or a matrix.

    Raises:
        ValueError: it is not a whole answer: an error, a warning (part of it may be missing), or
            something else altogether. Its text says which.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise ValueError("the answer is not an object")  # noqa: TRY004 - one kind for the caller
    if answer.get("status") != "success":
        kind, why = answer.get("errorType", "error"), str(answer.get("error", ""))[:200]
        raise ValueError(f"{kind}: {why}")
    warnings = answer.get("warnings")
    if warnings:
        first = warnings[0] if isinstance(warnings, list) else warnings
        raise ValueError(f"a partial answer: {str(first)[:200]}")
    try:
        data = answer["data"]
        kind, rows = data["resultType"], data["result"]
        if kind == "scalar":
            return (Series({}, (_point(rows),)),)
        return tuple(_series(row, matrix=kind == "matrix") for row in rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("the answer has another form than the API's") from error


def node_pages(
    values: Mapping[str, Sequence[Series]],
    *,
    sampled: Mapping[str, Sequence[Series]],
    labels: LabelMap,
    stale_after_s: float,
    instant: bool,
) -> dict[float, dict[str, NodePage]]:
    """Pages by the moment of evaluation (0.0 for instant answers) and by node.

    Args:
        values: series by metric name.
        sampled: the same series with the time of the sample (epoch seconds) as their value.
        labels: which labels say what.
        stale_after_s: a sample older than this when evaluated is no number.
        instant: whether these are instant answers, whose moments differ by how long each took.
    """
    out: dict[float, dict[str, NodePage]] = {}
    for metric, rows in values.items():
        ages = {row.key: _ages(row, instant=instant) for row in sampled.get(metric, ())}
        for row in rows:
            node = labels.node_of(row.labels)
            if node is None:
                continue
            head, known = labels.head(metric, row.labels), ages.get(row.key, {})
            for at, value in row.points:
                moment = 0.0 if instant else at
                page = out.setdefault(moment, {}).setdefault(node, NodePage())
                age_s = known.get(moment, math.inf)
                page.youngest_s = min(page.youngest_s, age_s)
                told = value if age_s <= stale_after_s else "NaN"
                page.lines.append((age_s, f"{head} {told}\n"))
    return out


def up_by_node(rows: Iterable[Series], *, labels: LabelMap) -> dict[str, bool]:
    """Whether any target of a node was scraped, as far as the targets' labels name nodes."""
    out: dict[str, bool] = {}
    for row in rows:
        node = labels.node_of(row.labels)
        if node is not None and row.points:
            out[node] = out.get(node, False) or row.points[-1][1] == "1"
    return out


def _ages(row: Series, *, instant: bool) -> dict[float, float]:
    out: dict[float, float] = {}
    for at, value in row.points:
        try:
            age_s = at - float(value)
        except ValueError:
            continue
        if math.isfinite(age_s):
            out[0.0 if instant else at] = max(age_s, 0.0)
    return out


def _series(row: Mapping[str, object], *, matrix: bool) -> Series:
    metric = row["metric"]
    if not isinstance(metric, dict):
        raise TypeError("labels")
    points = row["values"] if matrix else [row["value"]]
    if not isinstance(points, list):
        raise TypeError("points")
    return Series(
        {str(k): str(v) for k, v in metric.items()}, tuple(_point(point) for point in points)
    )


def _point(point: object) -> tuple[float, str]:
    if not isinstance(point, list):
        raise TypeError("point")
    at, value = point
    return float(at), str(value)


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
