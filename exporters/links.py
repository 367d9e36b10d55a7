"""Spans that were sent lately, so that a finding can point at those that it explains. Bounded; used by one thread."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from agent.columns import NULL_I64

SpanId = tuple[bytes, bytes]

#: Links of one finding: the SDKs' own default limit is 128 a span.
MAX_LINKS = 32
_EVENTS = 1024
#: Limiters of processes, decisions of each, and how far apart these are at least: two minutes and more of each.
_LIMITERS, _DECISIONS, _APART_NS = 64, 256, 500_000_000
#: Decisions may be told a little before or after the finding's own times.
_SLACK_NS = 1_000_000_000
_SUBJECT = re.compile(r"limiter (.+) \(")


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

    def of(self, evidence: Sequence[Mapping[str, Any]], start_ns: int, end_ns: int) -> tuple[list[SpanId], int]:
        """At most MAX_LINKS, and how many there would be more: the events that the evidence names, then decisions of
        the limiters in it, spread over the time.
        """
        found: dict[SpanId, None] = {}
        decisions: list[SpanId] = []
        for item in evidence:
            at, pid = item.get("t_ns"), item.get("pid")
            if item.get("table") == "limiter_decision":
                decisions += self._of_limiter(
                    item, at if isinstance(at, int) else start_ns, pid if isinstance(pid, int) else None, end_ns
                )
            elif (
                known := self._events.get(
                    (
                        str(item.get("table")),
                        at if isinstance(at, int) else 0,
                        pid if isinstance(pid, int) else NULL_I64,
                    )
                )
            ) is not None:
                found[known] = None
        decisions = list(dict.fromkeys(decisions))
        room = MAX_LINKS - len(found)
        step = max(-(-len(decisions) // room), 1) if room > 0 else 1
        links = [*found, *decisions[::step]][:MAX_LINKS]
        return links, len(found) + len(decisions) - len(links)

    def _of_limiter(self, item: Mapping[str, Any], start_ns: int, pid: int | None, end_ns: int) -> list[SpanId]:
        subject = _SUBJECT.match(str(item.get("subject", "")))
        limiter = str(item.get("limiter") or (subject[1] if subject else ""))
        until = item.get("end_ns")
        end_ns = (until if isinstance(until, int) else end_ns) + _SLACK_NS
        return [
            span
            for (name, process), kept in self._decisions.items()
            if name == limiter and pid in (None, process)
            for t_ns, span in kept
            if start_ns - _SLACK_NS <= t_ns <= end_ns
        ]
