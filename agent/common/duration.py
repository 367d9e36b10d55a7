"""Durations as text and back: formats ``1.42 s``, parses ``90s``, ``5m`` or ``128ms``."""

from __future__ import annotations

import math
import re

_SHOWN = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))
UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
#: A duration as a regular expression.
WRITTEN = r"(\d+(?:\.\d*)?|\.\d+) ?(ns|us|ms|s|m|h|d|)"
_WRITTEN = re.compile(WRITTEN, re.ASCII)


def number(value: float) -> str:
    """At most three significant digits; a whole number from 100 on."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}"


def span(ns: float, gap: str = " ") -> str:
    """``1.42 s``, ``-0.8 ms``, ``45 us``; ``-`` of NaN. gap: between number and unit."""
    if math.isnan(ns):
        return "-"
    size = abs(ns)
    for scale, unit in _SHOWN:
        if size >= scale * 0.9995:
            return f"{number(ns / scale)}{gap}{unit}"
    return f"{number(ns)}{gap}ns"


def instant(ns: float) -> bool:
    """Whether a duration rounds to 0, as that of an event."""
    return ns < 1000


def parse_ns(text: str, bare: str = "") -> int:
    """Parses ``128ms``, ``1.5 h`` to ns. bare: the unit of a number without one; empty if a unit is required. Raises
    ValueError.
    """
    match = _WRITTEN.fullmatch(text)
    unit = (match[2] or bare) if match else ""
    if match is None or not unit or (size := float(match[1])) == math.inf:
        raise ValueError(f"{text!r} is not a duration")
    return round(size * UNITS_NS[unit])


def brief(seconds: float) -> str:
    """A time in at most six characters for columns: ``53ms``, ``12.3s``, ``4m10s``, ``2h05m``, ``3d04h``; ``-`` of
    NaN.
    """
    if not abs(seconds) < 3e9:
        return "-"
    if abs(seconds) < 59.95:
        return span(seconds * 1e9, gap="") if abs(seconds) >= 0.0005 else "0s"
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    for large, small, names in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= large:
            return f"{sign}{whole // large}{names[0]}" + (
                f"{whole % large // small:02d}{names[1]}" if whole < 100 * large else ""
            )
    return f"{sign}{whole}s"
