"""The words of an episode or a verdict: a template, and the facts for its names. Numbers and instants are formatted
only when a finding is shown (agent/common/sentence.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from string import Formatter
from typing import TYPE_CHECKING, Protocol

from agent.common.address import UNIX, addr_text, peer_text
from agent.common.printable import printable
from agent.common.recent import Recent
from agent.common.sentence import Piece, Value, plain

if TYPE_CHECKING:
    import numpy as np

#: A text, or pieces of one.
Words = str | tuple[Piece, ...]
#: A text, a value, an instant (an integer, CLOCK_BOOTTIME ns), or words made of these.
Fact = Piece | tuple[Piece, ...]
_INSTANT_BYTES = len("2026-01-02T03:04:05.678Z")
_PATHS = Recent[bytes, str](1024)  # of Unix sockets, by address


def address(raw: bytes) -> str:
    """A stored address; for a Unix socket its path, if known."""
    return _PATHS.get(raw[:16], "") or addr_text(raw)


def peer(raw: bytes) -> str:
    """A stored peer, likewise."""
    return address(raw[:16]) if raw.startswith(UNIX) else peer_text(raw)


def stored_peer(name: object) -> object:
    """A peer's name as tables show it: a Unix socket has its number there, not its path."""
    if isinstance(name, str) and name.startswith("unix:/"):
        return next((addr_text(raw) for raw, path in _PATHS.items() if path == name), name)
    return name


def name_unix(raw: bytes, path: bytes) -> None:
    """From here on, this Unix socket is shown by its path."""
    _PATHS[raw[:16]] = f"unix:{printable(path)}"


def render(template: str, **facts: Fact) -> Words:
    """The template with facts in place of ``{name}``. Pass numbers as ``value`` or ``span``, since an integer is an
    instant. Raises KeyError for a missing fact.
    """
    return joined(
        part for literal, name, _, _ in Formatter().parse(template) for part in (literal, facts[name] if name else "")
    )


def pieces(of: Fact) -> tuple[Piece, ...]:
    return of if isinstance(of, tuple) and not isinstance(of, Value) else (of,)


def joined(parts: Iterable[Fact]) -> tuple[Piece, ...]:
    """Joins parts; adjacent texts become one."""
    out: list[Piece] = []
    for part in (piece for of in parts for piece in pieces(of)):
        if isinstance(part, str) and out and isinstance(last := out[-1], str):
            out[-1] = last + part
        elif part != "":
            out.append(part)
    return tuple(out)


def value(of: float | None, unit: str = "") -> Value:
    """unit: see ``Value``. Floats are rounded to the precision of a measurement; unknown or infinite values are
    None, and so are those of which the text, in ns, would be infinite.
    """
    if of is None or not math.isfinite(of * 1e9):
        return Value(None, unit)
    kept = float(of) if float(of).is_integer() else float(f"{of:.6g}")
    return Value(int(kept) if kept.is_integer() else kept, unit)


def span(ns: float | None) -> Value:
    return value(ns, "ns")


def measured(of: float, unit: str) -> Value:
    """A value of an episode, with its unit if that is a time; otherwise the template has the unit."""
    return value(of, unit if unit in ("ns", "s") else "")


class _Timed(Protocol):
    start_ns: int
    end_ns: int


def when(timed: _Timed) -> Words:
    return render("from {start} to {end}", start=timed.start_ns, end=timed.end_ns)


#: Subjects that begin with these are not names: they get a capital letter at the beginning of a sentence. Names stay as
#: the system shows them.
_NOUNS = ("the ", "limiter ", "key ", "accept queue ", "connection ", "requests ", "wall clock", "file system ")


def opening(subject: str) -> str:
    """A subject at the beginning of a sentence."""
    return subject[:1].upper() + subject[1:] if subject.startswith(_NOUNS) else subject


def amid(words: Words, subject: str) -> Words:
    """A sentence inside another one; a name at its beginning is kept."""
    first, *rest = pieces(words)
    if isinstance(first, str) and not (first.startswith(subject) and opening(subject) == subject):
        first = first[:1].lower() + first[1:]
    return joined([first, *rest])


@lru_cache(4096)
def text(stored: bytes) -> str:
    """A stored text; bytes that are not UTF-8 are shown escaped."""
    return stored.decode("utf-8", "backslashreplace")


def identity(row: np.void) -> tuple[int, int, str]:
    """The process of a row: pid, start in ticks of 10 ms, command name."""
    return int(row["pid"]), int(row["proc_start_ns"]) // 10_000_000, text(row["comm"])


def process(comm: str, pid: int | None) -> str:
    if pid is None:
        return comm or "an unknown process"
    return f"{comm} pid {pid}" if comm else f"pid {pid}"


def aside(comm: str, pid: int | None) -> str:
    """A process within parentheses."""
    return f"{comm}, pid {pid}" if comm and pid is not None else process(comm, pid)


def listing(items: Sequence[Words], limit: int = 3) -> Words:
    """``a, b and c``; beyond the limit ``a, b, c and 4 more``."""
    shown, last = (
        (items[:limit], render("{n} more", n=value(len(items) - limit)))
        if len(items) > limit
        else (items[:-1], items[-1])
    )
    commas = [part for item in shown for part in (", ", item)][1:]
    return joined([*commas, " and ", last]) if shown else last


def fit_pieces(parts: Sequence[Piece], width: int) -> list[Piece]:
    """As many as fit into ``width`` bytes of text, with instants in UTC, and an ellipsis if something was cut."""
    sizes = [_INSTANT_BYTES if isinstance(part, int) else len(plain([part]).encode()) for part in parts]
    if sum(sizes) <= width:
        return list(parts)
    kept: list[Piece] = []
    room = width
    for part, size in zip(parts, sizes, strict=True):
        if size > room - 3:
            return [*kept, fit(part, room).decode() if isinstance(part, str) else "..."]
        kept.append(part)
        room -= size
    return kept


def fit(whole: str, width: int) -> bytes:
    """UTF-8, cut to ``width`` bytes between characters, with an ellipsis if something was cut."""
    raw = whole.encode()
    return raw if len(raw) <= width else raw[: width - 3].decode("utf-8", "ignore").encode() + b"..."
