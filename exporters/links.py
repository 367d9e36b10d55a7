"""Recently sent spans, so that a finding can link to those that it explains. Bounded; used by one thread."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from agent.columns import NULL_I64

SpanId = tuple[bytes, bytes]

#: Links of one finding: the SDKs' own default limit is 128 a span.
MAX_LINKS = 32
_EVENTS = 1024
#: Limiters by process, decisions of each, and their least distance: at least two minutes of each.
_LIMITERS, _DECISIONS, _APART_NS = 64, 256, 500_000_000
#: Decisions may be reported a little before or after the finding's own times.
_SLACK_NS = 1_000_000_000


class Links:
    """Events by (table, t_ns, pid); notable decisions by limiter and process."""

    def __init__(self) -> None:
        self._events: OrderedDict[tuple[str, int, int], SpanId] = OrderedDict()
        self._decisions: OrderedDict[tuple[str, int], deque[tuple[int, SpanId]]] = OrderedDict()

    def event(self, table: str, t_ns: int, pid: int, span: SpanId) -> None:
        self._events[table, t_ns, pid] = span
        while len(self._events) > _EVENTS:
            self._events.popitem(last=False)

    def decision(self, limiter: str, t_ns: int, pid: int, span: SpanId) -> None:
        kept = self._decisions.setdefault((limiter, pid), deque(maxlen=_DECISIONS))
        self._decisions.move_to_end((limiter, pid))
        if not kept or abs(t_ns - kept[-1][0]) >= _APART_NS:
            kept.append((t_ns, span))
        while len(self._decisions) > _LIMITERS:
            self._decisions.popitem(last=False)

    def of(self, evidence: Sequence[Mapping[str, Any]], own: bytes) -> tuple[list[SpanId], int]:
        """At most MAX_LINKS links to spans of other traces than ``own``, and how many more there would be: the events
        that the evidence names, then decisions of its limiters, spread over the time. evidence: rows of that table,
        with their ``keys`` decoded.
        """
        found: dict[SpanId, None] = {}
        decisions: list[SpanId] = []
        for item in evidence:
            pid = item["keys"].get("pid")
            if item["table"] == "limiter_decision":
                decisions += self._of_limiter(item, pid)
            elif (
                known := self._events.get((item["table"], item["t_ns"], NULL_I64 if pid is None else pid))
            ) is not None:
                found[known] = None
        found = {span: None for span in found if span[0] != own}
        decisions = [span for span in dict.fromkeys(decisions) if span[0] != own]
        room = MAX_LINKS - len(found)
        step = max(-(-len(decisions) // room), 1) if room > 0 else 1
        links = [*found, *decisions[::step]][:MAX_LINKS]
        return links, len(found) + len(decisions) - len(links)

    def _of_limiter(self, item: Mapping[str, Any], pid: int | None) -> list[SpanId]:
        return [
            span
            for (name, process), kept in self._decisions.items()
            if name == item["keys"].get("limiter_id") and pid in (None, process)
            for t_ns, span in kept
            if item["t_ns"] - _SLACK_NS <= t_ns <= item["end_ns"] + _SLACK_NS
        ]
