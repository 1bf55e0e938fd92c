"""Real outputs of real tools, and builders of documents in the tools' own layouts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def real() -> Callable[[str], str]:
    """The text of one recorded output."""

    def load(name: str) -> str:
        return (DATA / name).read_bytes().decode("utf-8", errors="replace")

    return load


@pytest.fixture(scope="session")
def diag4() -> Callable[..., str]:
    """A 4.x document: per test a list of (gpu, status, error id or None, sentence)."""

    def build(tests: dict[str, list[tuple[int, str, int | None, str]]], **extra) -> str:
        written = []
        for name, results in tests.items():
            rows = []
            for gpu, status, number, sentence in results:
                row = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
                row["status"] = status
                if sentence:
                    row["warnings"] = [
                        {"warning": sentence} | ({"error_id": number} if number else {})
                    ]
                rows.append(row)
            category = "Deployment" if name == "software" else "Hardware"
            written.append({"category": category, "tests": [{"name": name, "results": rows}]})
        return json.dumps({"DCGM Diagnostic": {"test_categories": written}} | extra, indent=1)

    return build
