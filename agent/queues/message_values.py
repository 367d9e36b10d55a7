"""Values in a message: its id, and its number. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

#: Of a number: 128 bits have 39. A longer text is none.
_DIGITS = 40
#: RFC 9562, section 5.7: 48 bits of Unix ms, the version, 12 bits, the variant, 62 bits.
_UUIDV7 = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE)


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


def uuidv7_ms(value: str | int | None) -> int | None:
    """The Unix time of a UUIDv7, ms; None if it is none."""
    found = _UUIDV7.fullmatch(value) if isinstance(value, str) and len(value) <= 36 else None
    return int(found[1] + found[2], 16) if found else None


def whole(value: str | int | None) -> int | None:
    """A value as a number; None if it is none. Of a UUIDv7, its time in ms: below that, its bits are no order."""
    ms = uuidv7_ms(value)
    if ms is not None:
        return ms
    try:
        return value if not isinstance(value, str) else int(value) if len(value) <= _DIGITS else None
    except ValueError:
        return None
