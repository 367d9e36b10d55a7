"""Threads that slept during a whole profile, from /proc. The helper writes the text (agent/kernel/asleep.py)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from agent.tables import TABLES

#: Kinds of sleep that are reported for one process.
MOST = 8
_STATES = {b"S": TABLES["off_cpu"].code("state", "sleeping"), b"D": TABLES["off_cpu"].code("state", "uninterruptible")}


class Asleep(NamedTuple):
    """Threads of one process that sleep in the same place. nr: the system call, 0xffff for none; function: of the
    kernel.
    """

    pid: int
    state: int
    nr: int
    function: str
    threads: int


def parse(pid: int, text: bytes, switched: set[int]) -> list[Asleep]:
    """Parses the helper's lines ``tid state call function``, without threads that were switched during the profile. The
    places with most threads come first.
    """
    found: Counter[tuple[int, int, str]] = Counter()
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) == 4 and words[1] in _STATES and words[0].isdigit() and int(words[0]) not in switched:
            nr = int(words[2]) if words[2].isdigit() and int(words[2]) < 1024 else 0xFFFF
            found[_STATES[words[1]], nr, words[3].decode("ascii", "replace")] += 1
    return [Asleep(pid, *place, threads) for place, threads in found.most_common(MOST)]
