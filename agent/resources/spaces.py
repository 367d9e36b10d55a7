"""Free space of the file systems that watched processes write to. Only the helper can see those of other processes
(agent/kernel/spaces.py).

Each process is asked every ten seconds which file systems it writes to. For each file system the first such process is
asked again before it can have become full: each half second, or more seldom while there is much room.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.batch import Batch
from agent.common.disk_full import SHARE, full_below
from agent.contracts import Pending
from agent.kernel import steps
from agent.resources.resource_source import AGAIN_NS, POLL_NS, Resources, Watched, batch_of, due, who

if TYPE_CHECKING:
    from agent.kernel.helper_client import Helper

_ESCAPED = re.compile(rb"\\([0-7]{3})")
#: Concurrent requests, so that the helper stays free for other work.
_AT_ONCE = 4
#: What no host writes in a second: bytes, and new files.
_MOST_BYTES_PER_S, _MOST_FILES_PER_S = 4 << 30, 1_000_000


class Space(NamedTuple):
    """used, limit: bytes, or files if those are scarcer. full: next to nothing is free. fills_ns: the shortest time in
    which it can become full.
    """

    point: bytes
    used: int
    limit: int
    full: bool
    fills_ns: int

    @classmethod
    def parse(cls, text: bytes) -> list[Space]:
        """From the helper's lines; malformed lines are left out."""
        out = []
        for line in text.split(b"\n"):
            words = line.split(b" ", 5)
            if len(words) == 6 and all(word.isdigit() for word in words[:4]):
                size, left, files, free = (int(word) for word in words[:4])
                point = _ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 255]), words[5])
                few = files > 0 and free * max(size, 1) < left * files and free < SHARE * files
                used, limit = (files - free, files) if few else (size - left, size)
                fills_s = left / _MOST_BYTES_PER_S
                if files:
                    fills_s = min(fills_s, free / _MOST_FILES_PER_S)
                out.append(cls(point, used, limit, few or bool(left <= full_below(size)), int(fills_s * 1e9)))
        return out


@dataclass
class _Known:
    """A file system. requested: the process that reports it."""

    requested: tuple[int, int]
    reported: dict[str, tuple[int, tuple[int, int]]] = field(default_factory=dict)
    was_full: bool = False
    due_ns: int = 0


class Spaces(Pending):
    """A source."""

    name = "spaces"

    def __init__(self, helper: Helper, resources: Resources) -> None:
        self._helper, self._resources = helper, resources
        self._known: dict[
            tuple[bytes, int, int], _Known
        ] = {}  # by mount point, size and reporting process: namespaces may have different mounts of one name
        self._asked_ns: dict[tuple[int, int], int] = {}
        self._rows: list[dict[str, Any]] = []
        self._waiting: set[tuple[int, int]] = set()
        self._next_ns = 0

    def close(self) -> None: ...

    def pending(self, now_ns: int) -> bool:
        return bool(self._rows) or (bool(self._known) and now_ns >= self._next_ns)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + POLL_NS
            self._request(now_ns)
        rows, self._rows = self._rows, []
        if rows:
            yield batch_of(rows, now_ns, POLL_NS)

    def _request(self, now_ns: int) -> None:
        watched = self._resources.watched
        self._asked_ns = {key: at for key, at in self._asked_ns.items() if key in watched}
        self._known = {place: known for place, known in self._known.items() if known.requested in watched}
        wanted = [known.requested for known in self._known.values() if known.due_ns <= now_ns]
        wanted += sorted(
            (key for key in watched if self._asked_ns.get(key, 0) <= now_ns - AGAIN_NS),
            key=lambda key: self._asked_ns.get(key, 0),
        )
        for key in [key for key in dict.fromkeys(wanted) if key not in self._waiting][: _AT_ONCE - len(self._waiting)]:
            if self._helper.silent or not self._helper.alive:
                return
            self._asked_ns[key] = now_ns
            self._waiting.add(key)
            steps.run(self._read_space(watched[key], key, now_ns), lambda _value, _error: None)

    def _read_space(self, one: Watched, key: tuple[int, int], now_ns: int) -> steps.Steps[None]:
        try:
            fd = yield self._helper.opening(one.pid, "spaces")
            try:
                text = os.read(fd, 1 << 14)
            finally:
                os.close(fd)
        except OSError:  # it has ended, or has nothing to report
            return
        finally:
            self._waiting.discard(key)
        self._take(one, key, Space.parse(text), now_ns)

    def _take(self, one: Watched, key: tuple[int, int], reported: list[Space], now_ns: int) -> None:
        """Takes a report of one process. File systems that it no longer reports may be reported by another process."""
        places = {(space.point, space.limit, one.uid) for space in reported}
        for place in [place for place, known in self._known.items() if known.requested == key and place not in places]:
            del self._known[place]
        for space in reported:
            self._note(one, key, space, now_ns)

    def _note(self, one: Watched, key: tuple[int, int], space: Space, now_ns: int) -> None:
        known = self._known.setdefault((space.point, space.limit, one.uid), _Known(key))
        if known.requested != key:
            return
        changed, known.was_full = known.was_full != space.full, space.full
        known.due_ns = now_ns + min(max(space.fills_ns, POLL_NS), AGAIN_NS) - POLL_NS // 4
        if due(known.reported, "disk", space.used, space.limit, now_ns) or changed or space.full:
            self._rows.append(
                {**who(one), "kind": "disk", "object": space.point, "used": space.used, "limit": space.limit}
            )
