"""Numbers and names as people say them. No module of the correlator formats a number on its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from agent.common import duration
from agent.common.address import addr_text, peer_text

_MARK = "\x1e"  # around an instant
number, address, peer = duration.number, addr_text, peer_text


def span(ns: float) -> str:
    """A duration without its sign, which words tell: ``1.42 s``, ``0.8 ms``, ``45 us``."""
    return duration.span(abs(ns))


def seconds(value_s: float) -> str:
    """A duration given in seconds, minutes from two of them on."""
    return f"{number(value_s / 60)} min" if value_s >= 120 else span(value_s * 1e9)


def instant(t_ns: int) -> str:
    """A CLOCK_BOOTTIME instant in words that are still to be told: see ``pieces``."""
    return f"{_MARK}{t_ns}{_MARK}"


def pieces(words: str) -> list[str | int]:
    """Texts, and between them the instants, as CLOCK_BOOTTIME ns."""
    return [int(part) if i % 2 else part for i, part in enumerate(words.split(_MARK))]


def plain(said: Sequence[str | int]) -> str:
    """Pieces as one text; instants as ``--since`` takes them."""
    return "".join(part if isinstance(part, str) else f"boot+{part / 1e9:.3f}" for part in said)


def fit_pieces(said: Sequence[str | int], width: int) -> list[str | int]:
    """As many as fit into ``width`` bytes as ``plain`` text, with an ellipsis where something was cut."""
    if len(plain(said).encode()) <= width:
        return list(said)
    kept: list[str | int] = []
    room = width
    for part in said:
        size = len(plain([part]).encode())
        if size > room - 3:
            return [*kept, fit(part, room).decode() if isinstance(part, str) else "..."]
        kept.append(part)
        room -= size
    return kept


def measured(value: float, unit: str) -> str:
    """A value of an episode with its unit, where that is a time."""
    return span(value) if unit == "ns" else seconds(value) if unit == "s" else number(value)


class _Timed(Protocol):
    start_ns: int
    end_ns: int


def when(timed: _Timed) -> str:
    return f"from {instant(timed.start_ns)} to {instant(timed.end_ns)}"


def capital(words: str) -> str:
    return words[0].upper() + words[1:]


def percent(share: float) -> str:
    return f"{number(100 * share)} %"


def text(value: bytes) -> str:
    """A stored text; bytes that are no UTF-8 are shown escaped."""
    return value.decode("utf-8", "backslashreplace").replace(_MARK, "\\x1e")


def process(comm: str, pid: int | None) -> str:
    if pid is None:
        return comm or "an unknown process"
    return f"{comm} pid {pid}" if comm else f"pid {pid}"


def listing(items: Sequence[str], limit: int = 3) -> str:
    """``a, b and c``; beyond the limit ``a, b, c and 4 more``."""
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def fit(text_: str, width: int) -> bytes:
    """UTF-8, cut to ``width`` bytes between characters, with an ellipsis where something was cut."""
    raw = text_.encode()
    return raw if len(raw) <= width else raw[: width - 3].decode("utf-8", "ignore").encode() + b"..."


def fit_json(items: Sequence[object], width: int) -> bytes:
    """A compact JSON array of as many leading items as fit into ``width`` bytes."""
    kept = [json.dumps(item, separators=(",", ":"), sort_keys=True, ensure_ascii=True) for item in items]
    while kept and sum(map(len, kept)) + len(kept) + 1 > width:
        kept.pop()
    return f"[{','.join(kept)}]".encode()
