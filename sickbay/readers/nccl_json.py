"""The document nccl-tests writes with `-J`, as the same runs its text gives.

The document holds the whole environment of the process; only named fields are taken from it.
"""

import re
from collections.abc import Mapping
from typing import Any

from sickbay.readers.bandwidth import finite
from sickbay.readers.documents import json_documents
from sickbay.readers.nccl_rows import Block, Row, Run

# The writer prints an infinity bare, which is no JSON.
_BARE = re.compile(r"(:\s*)-?(?:inf|nan)(?=\s*[,}\]\n])", re.IGNORECASE)


def documents(text: str) -> tuple[list[dict[str, Any]], bool]:
    """The documents of nccl-tests in a text, and whether one began and did not end."""
    if "{" not in text:
        return [], False
    found, truncated = json_documents(_BARE.sub(r"\1null", text))
    return [d for d in found if "results" in d and "config" in d], truncated


def run_of(document: Mapping[str, Any]) -> Run:
    """The run one document tells of."""
    config = _mapping(document.get("config"))
    bounds, average = (
        _mapping(document.get("out_of_bounds")),
        _mapping(document.get("average_bus_bandwidth")),
    )
    rows = [row for row in map(_row, _list(document.get("results"))) if row]
    names = {str(_mapping(r).get("experiment_name") or "") for r in _list(document.get("results"))}
    count = finite(bounds.get("count"))
    return Run(
        collective=next(iter(names)) or None if len(names) == 1 else None,
        devices=[_device(_mapping(d)) for d in _list(config.get("devices"))],
        rows=rows,
        bounds=None if count is None else int(count),
        bounds_word={"true": "OK", "false": "FAILED"}.get(_word(bounds.get("okay"))),
        average=finite(average.get("bandwidth")),
        average_word={"true": "OK", "false": "FAILED"}.get(_word(average.get("okay"))),
        has_average="average_bus_bandwidth" in document,
        announced=True,
        parameters=True,
        concluded=bool(document.get("end_time")),
    )


def errors_of(document: Mapping[str, Any]) -> list[str]:
    """The sentences of the document's list of errors."""
    return [str(error)[:300] for error in _list(document.get("errors"))]


def _row(result: object) -> Row | None:
    fields = _mapping(result)
    size = finite(fields.get("size"))
    if size is None:
        return None
    redop = fields.get("redop")
    return Row(
        int(size),
        redop if isinstance(redop, str) else None,
        _block(fields.get("out_of_place")),
        _block(fields.get("in_place")),
    )


def _block(value: object) -> Block | None:
    if not isinstance(value, Mapping):
        return None
    return Block(
        finite(value.get("alg_bw")), finite(value.get("bus_bw")), finite(value.get("nwrong"))
    )


def _device(fields: Mapping[str, Any]) -> tuple[str, int, str]:
    rank = finite(fields.get("rank"))
    return str(fields.get("group", 0)), int(rank or 0), str(fields.get("hostname", ""))


def _word(value: object) -> str:
    return str(value).lower()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
