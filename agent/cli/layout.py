"""Lays out text for a screen width: breaks lines between words, and fits columns."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

_FLOWS_FROM = 24  # text columns wider than this may wrap
_INDENT = "    "


def room(stream: TextIO) -> int | None:
    """Characters per line: COLUMNS if set, else the terminal's width; None if the stream is no terminal, when lines are
    not broken.
    """
    if not stream.isatty():
        return None
    return max(shutil.get_terminal_size().columns, 20)


def wrapped(text: str, width: int | None, indent: str = "", hang: str = _INDENT) -> list[str]:
    """The text in lines of at most ``width`` characters, broken between words. A longer word gets its own line."""
    if width is None or len(indent) + len(text) <= width:
        return [indent + text]
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    ) or [indent]


def widths(
    text: Mapping[str, Sequence[str]], flowing: Sequence[str], width: int, keep_all: bool, measure: str = ""
) -> dict[str, int]:
    """The columns that fit, with their widths. text: cells by column. measure: the column that is left out last.
    flowing: text columns, which may shrink to their longest word. keep_all: no column is left out, and lines may be
    longer than the screen.
    """
    full = {n: max(len(n), *map(len, of)) for n, of in text.items()}
    least = {n: _least(n, text[n]) if n in flowing and full[n] > _FLOWS_FROM else full[n] for n in text}
    from agent.cli import cells  # imported late, so that an error in the tables' declarations is reported too

    shown = list(text) if keep_all else cells.fit(list(text), least, width, measure)
    left = width - sum(least[n] + 2 for n in shown) + 2
    out = {n: least[n] for n in shown}
    for n in sorted((n for n in shown if full[n] > least[n]), key=lambda n: full[n] - least[n]):
        waiting = [m for m in shown if full[m] > out[m]]
        out[n] += max(0, min(full[n] - least[n], left // len(waiting)))
        left -= out[n] - least[n]
    return out


def _least(name: str, of: Sequence[str]) -> int:
    return max(len(name), max((len(word) for cell in of for word in cell.split()), default=1))


def lines(texts: Mapping[str, str], sizes: Mapping[str, int], right: frozenset[str]) -> list[str]:
    """One row, in as many lines as its longest cell needs."""
    parts = {n: wrapped(texts[n], size, "", "") for n, size in sizes.items()}
    out = []
    for i in range(max(map(len, parts.values()))):
        part = {n: parts[n][i] if i < len(parts[n]) else "" for n in sizes}
        out.append(
            "  ".join(part[n].rjust(size) if n in right else part[n].ljust(size) for n, size in sizes.items()).rstrip()
        )
    return out
