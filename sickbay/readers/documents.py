"""Finding JSON documents in what a tool printed: text may come before, between and after."""

import hashlib
import json
from typing import Any

_HEAD_CHARS = 200


def digest(text: str) -> str:
    """SHA-256 of a raw text."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def json_documents(text: str) -> tuple[list[dict[str, Any]], bool]:
    """All whole JSON objects in `text`, and whether one more began and did not end."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    truncated = False
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            truncated = truncated or _began_a_document(text[at : at + _HEAD_CHARS])
            at = text.find("{", at + 1) if not truncated else -1
            continue
        if isinstance(value, dict):
            found.append(value)
        at = text.find("{", end)
    return found, truncated


def _began_a_document(text: str) -> bool:
    """Whether this brace opens an object with a quoted key: not just a brace in a sentence."""
    return text[1:].lstrip().startswith('"')


def outside_documents(text: str) -> str:
    """What is not a document: the text before the first and after the last brace."""
    start, end = text.find("{"), text.rfind("}")
    return text if start < 0 else f"{text[:start]}\n{text[end + 1 :] if end > start else ''}"
