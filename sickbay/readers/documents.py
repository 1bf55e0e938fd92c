"""Finding JSON documents in what a tool printed: text may come before, between and after."""

import hashlib
import json
import re
from typing import Any

# A brace that can open an object. Trying every brace of a text is quadratic in its length, for
# the decoder counts lines up to where it fails.
_OPENING = re.compile(r"\{\s*[\"}]")


def digest(text: str) -> str:
    """SHA-256 of a raw text."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def json_documents(text: str) -> tuple[list[dict[str, Any]], bool]:
    """All whole JSON objects in `text`, and whether one more began and did not end."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    truncated = False
    opening = _OPENING.search(text)
    while opening and not truncated:
        try:
            value, end = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            truncated = True
            continue
        if isinstance(value, dict):
            found.append(value)
        opening = _OPENING.search(text, end)
    return found, truncated


def outside_documents(text: str) -> str:
    """What is not a document: the text before the first and after the last brace."""
    start, end = text.find("{"), text.rfind("}")
    return text if start < 0 else f"{text[:start]}\n{text[end + 1 :] if end > start else ''}"
