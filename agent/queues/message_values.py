"""Values in a message: its id, and its number. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_DIGITS = 20


def value_at(text: str | bytes, path: Sequence[str]) -> str | int | None:
    """The text or integer at this path of JSON; the whole text without a path. None if there is none."""
    text = text if isinstance(text, str) else text.decode(errors="backslashreplace")
    try:
        value: Any = json.loads(text) if path else text
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return value if type(value) in (str, int) and value != "" else None


def whole(value: str | int | None) -> int | None:
    """A value as a number; None if it is none."""
    try:
        return int(value[:_DIGITS]) if isinstance(value, str) else value
    except ValueError:
        return None
