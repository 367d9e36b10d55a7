"""Data of a Redis server that went back: after a fail-over to a replica that had not received all, after a restart
without all of its data, or because somebody set a stream or a group back.

A promoted replica reports which history it continues (``master_replid2``) and from where (``second_repl_offset``). What
the former primary had beyond that at the last poll is lost, in bytes of the replication stream. What it wrote after
that poll is not known, so all numbers are lower bounds. Streams show it by their ids and counters. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from agent.queues.redis_reading import Id, Stream, shown_id

#: How reasons begin that are losses of data; agent/correlate/brokers.py looks for these. A server that is restarted
#: without its data has another history, too.
FAIL_OVER, REPLACED = "fail-over: ", "restarted or replaced: "
_SHOWN_NS = 60_000_000_000
#: Of the replication stream without a write of a client: PING and REPLCONF GETACK of some seconds.
IDLE_BYTES = 128


@dataclass(frozen=True)
class Replication:
    """Of ``INFO replication``: the id of the history and the offset in it; before: the history that it continues, and
    the first offset that is its own.
    """

    history: str
    offset: int
    before: str = ""
    own_from: int = -1


@dataclass
class _Event:
    why: str
    at_ns: int


class DataHistory:
    """One server, or the servers that answer at its address one after the other."""

    def __init__(self) -> None:
        self.how = ""  #: FAIL_OVER or REPLACED if another history goes on since the previous poll
        self._replication: Replication | None = None
        self._streams: dict[bytes, Stream] = {}
        self._events: dict[tuple[bytes, bytes], _Event] = {}  # (stream, group); empty: all of them

    def see(self, replication: Replication | None, streams: Iterable[Stream], now_ns: int) -> None:
        """A poll that succeeded."""
        before, self._replication = self._replication, replication or self._replication
        how, lost = passed_over(before, replication)
        self.how = how
        if lost >= IDLE_BYTES:
            self.note(f"{how}{bytes_lost(lost)}", now_ns)
        seen = {}
        for stream in streams:
            seen[stream.name] = stream
            was = self._streams.get(stream.name)
            why = _back(was, stream, replaced=bool(how)) if was is not None else ""
            if why:
                self.note(f"{how}{why}", now_ns, stream.name)
        self._streams = seen
        self.expire(now_ns)

    def note(self, why: str, now_ns: int, stream: bytes = b"") -> None:
        """The reason from now on of a stream (or a queue), or of the server."""
        self._events[stream, b""] = _Event(why, now_ns)

    def expire(self, now_ns: int) -> None:
        """Forgets the reasons of more than a minute ago."""
        self._events = {key: one for key, one in self._events.items() if now_ns - one.at_ns < _SHOWN_NS}

    def forget(self, gone: Iterable[tuple[bytes, bytes]], left: Container[bytes]) -> None:
        """Groups (stream, group) that were deleted: those that are made again under their names are others. left:
        streams that still have groups.
        """
        for stream, group in gone:
            self._events.pop((stream, group), None)
            if stream not in left:
                self._streams.pop(stream, None)
                self._events.pop((stream, b""), None)

    def group(self, stream: bytes, group: bytes, before: Id, now: Id, now_ns: int) -> None:
        """The position of a group at the previous poll and now."""
        if now < before and (stream, b"") not in self._events:
            why = f"the group went back from {shown_id(before)} to {shown_id(now)}: entries are redelivered"
            self._events[stream, group] = _Event(why, now_ns)

    def why(self, stream: bytes = b"", group: bytes = b"") -> str:
        """The reason why a group or its stream is rewound, or without a stream the server; empty if it is not."""
        event = self._events.get((stream, b"")) or self._events.get((stream, group))
        return event.why if event is not None else ""


def bytes_lost(lost: int) -> str:
    return f"writes of at least {lost:,} bytes of the replication stream were lost"


def passed_over(before: Replication | None, now: Replication | None) -> tuple[str, int]:
    """How another history goes on, if one does, and how many bytes of the former are not in it, as far as known."""
    if before is None or now is None or before.history == now.history:
        return "", 0
    if now.before == before.history:
        return FAIL_OVER, before.offset - (now.own_from - 1)
    return REPLACED, 0


def _back(was: Stream, now: Stream, replaced: bool) -> str:
    """replaced: whether other data answer than before."""
    fewer = was.added - now.added if was.added is not None and now.added is not None else 0
    ids = was.last_generated, now.last_generated
    older = ids[0] is not None and ids[1] is not None and ids[1] < ids[0]
    if fewer > 0 and not (replaced or older) and was.first is not None and was.first == now.first:
        return f"entries-added went from {was.added} to {now.added}: it was set (XSETID), or entries are gone"
    if fewer > 0:
        went = f", its last id from {shown_id(ids[0])} to {shown_id(ids[1])}" if older and ids[0] and ids[1] else ""
        return f"at least {fewer:,} entries are gone: entries-added went from {was.added} to {now.added}{went}"
    if older and ids[0] is not None and ids[1] is not None:
        return f"its last id went back from {shown_id(ids[0])} to {shown_id(ids[1])}"
    return ""
