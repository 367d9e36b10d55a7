"""What of a summary a terminal has room for: whole lines and whole findings, the most important first, and a line that
says what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """Lines that are shown together or not at all. rank: the smallest are shown first. what: what they are one of, in
    words, where they are left out.
    """

    rank: int
    lines: list[str]
    what: str = ""


def size() -> os.terminal_size:
    """The terminal's, now; COLUMNS and LINES where stdout is none."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size((100, 40))
    return found if found.columns and found.lines else shutil.get_terminal_size((100, 40))


def fitted(parts: Sequence[Part], height: int, width: int) -> list[str]:
    """The lines of the parts that fit, in the order given."""
    shown = _chosen(parts, height)
    if len(shown) == len(parts):
        return [line for part in parts for line in part.lines]
    shown = _chosen(parts, height - 1)
    missing = Counter(part.what for i, part in enumerate(parts) if i not in shown and part.what)
    text = joined(
        ["not shown:", *(f"{n} {what}{'s' * (n != 1)}" for what, n in reversed(missing.items()))], width
    )  # findings stand last
    lines = [line for i, part in enumerate(parts) if i in shown for line in part.lines]
    return [*lines, text] if missing else lines


def _chosen(parts: Sequence[Part], height: int) -> set[int]:
    chosen: set[int] = set()
    for i in sorted(range(len(parts)), key=lambda i: (parts[i].rank, i)):
        if len(parts[i].lines) <= height:
            height -= len(parts[i].lines)
            chosen.add(i)
    return chosen


def joined(words: Sequence[str], width: int) -> str:
    """The words, two spaces apart, as many as there is room for; an ellipsis says that there are more. None is cut."""
    text = words[0]
    for i, word in enumerate(words[1:], 2):
        more = 2 * (i < len(words))
        if len(text) + 2 + len(word) + more > width:
            return f"{text} …" if len(text) + 2 <= width else text
        text += f"  {word}"
    return text


def row(name: str, words: Sequence[tuple[int, str]], width: int, least: int = 32) -> str:
    """A name and its (importance, words): the least important go first where the name would not have ``least``
    characters; then it is shortened.
    """
    kept = list(words)
    while kept and width - sum(len(text) + 2 for _, text in kept) < min(len(name), least):
        kept.remove(min(kept, key=lambda word: word[0]))
    return "  ".join([shortened(name, width - sum(len(text) + 2 for _, text in kept)), *(text for _, text in kept)])


def shortened(name: str, width: int) -> str:
    """A name of at most ``width`` characters: the middle of a longer one is an ellipsis."""
    if len(name) <= width:
        return name
    end = max(width - 1, 0) // 2
    return f"{name[: max(width - 1 - end, 0)]}…{name[len(name) - end :]}"


def cut(line: str, width: int) -> str:
    """The last resort where characters are wider than one column: a line of at most that many columns; escape sequences
    take none.
    """
    out, left = [], width
    for character, escape in re.findall(r"([^\x1b])|(\x1b\[[0-9;]*m)", line):
        left -= _columns(character) if character else 0
        if escape or left >= 0:
            out.append(character or escape)
    return "".join(out)


def _columns(character: str) -> int:
    if character.isascii():
        return 1
    return 0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
