"""The correlator's own records: an episode of a symptom, a verdict on a cause. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent.correlate.catalogue import Symptom, symptoms
from agent.correlate.words import Words

if TYPE_CHECKING:
    from agent.correlate.rank import Ranked


@dataclass(eq=False)
class Episode:
    """One symptom of one subject, from its first to its last bad second. Values are in ``unit``, times CLOCK_BOOTTIME
    ns.

    slot: the subject's row in its series. base: what was usual; value: the worst seen; bar: what a bad second exceeds.
    scope: what episodes of one local cause share (the process, or the queue). facts: what causes are judged by. ranked:
    what they said last.
    recurs_by: by which of its values it may be one (agent/correlate/recurrence.py); empty: it is told however often it
    comes. blame: the cause of its finding, where that is known. keys: what selects its rows in its symptom's table,
    beside the pid (see ``Evidence.keys``). taker: of a limiter that is asked at several places, the other place that
    took most.
    """

    symptom: str
    key: tuple[object, ...]
    slot: int
    subject: str
    scope: str
    start_ns: int
    end_ns: int
    metric: str
    unit: str
    base: float
    value: float
    bar: float
    last_bad: int
    pid: int | None = None
    start_tick: int | None = None
    comm: str = ""
    words: str = ""
    count: int = 0
    facts: dict[str, float] = field(default_factory=dict)
    ranked: Ranked | None = None
    recurs_by: str = ""
    blame: str = ""
    keys: Mapping[str, object] = field(default_factory=dict)
    taker: str = ""

    @property
    def declared(self) -> Symptom:
        return symptoms()[self.symptom]

    @property
    def order(self) -> tuple[int, str, int, str]:
        """The first of several names a finding."""
        return self.declared.order, self.symptom, self.start_ns, self.subject


@dataclass(frozen=True)
class Culprit:
    """Who did it, as far as that is known. pid: in the agent's namespace. object: a server's ip:port, a consumer, a
    device, a cgroup.
    """

    pid: int | None = None
    comm: str = ""
    object: str = ""


UNKNOWN_CULPRIT = Culprit()
#: The cause of what nothing explains.
UNKNOWN = "unknown"


#: Of evidence whose time is that of its episode: how much earlier and later its rows may lie. Rows of an interval, and
#: of calls, come at its end; an effect shows after its cause.
_BEFORE_NS, _AFTER_NS = 2_000_000_000, 3_000_000_000


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence: what a column said over a time, of the rows of a table that ``keys`` select.

    column: empty where rows were counted. what: a label. value, baseline (what was usual): in ``unit``; None: unknown.
    keys: values by column of the table, as queries show them (a peer: ``ip:port``, an enum: its name). t_ns, end_ns:
    the rows' times, CLOCK_BOOTTIME ns, both inclusive; None: not known yet (see ``within``). object: what it is about,
    for people. details: more of it, by name.
    """

    table: str
    what: str
    value: float | None = None
    unit: str = ""
    column: str = ""
    baseline: float | None = None
    t_ns: int | None = None
    end_ns: int | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    object: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def within(self, episode: Episode) -> Evidence:
        """The same with a time: that of the episode, where it has none of its own."""
        if self.t_ns is not None:
            return self if self.end_ns is not None else replace(self, end_ns=self.t_ns)
        return replace(self, t_ns=episode.start_ns - _BEFORE_NS, end_ns=episode.end_ns + _AFTER_NS)


@dataclass(frozen=True)
class Verdict:
    """What one rule says of one episode.

    score: 0 (looked at, does not explain it) to 1. scope: what it is about, for example the peer; empty matches any.
    words: complete "... because" (or say what was looked at, where the score is 0). detail: the finer word of the cause
    (``finding.cause_detail``). blamed: the processes that it is about beside the culprit. short: what stands in
    parentheses behind the symptom in place of ``words``, where both are about the same subject.
    """

    cause: str
    score: float
    scope: str
    words: Words
    evidence: tuple[Evidence, ...] = ()
    detail: str = ""
    culprit: Culprit = UNKNOWN_CULPRIT
    blamed: tuple[int, ...] = ()
    short: Words = ""


def item(
    table: str,
    what: str,
    value: float | None,
    unit: str = "",
    *,
    column: str | None = "",
    baseline: float | None = None,
    t_ns: int | None = None,
    end_ns: int | None = None,
    keys: Mapping[str, Any] | None = None,
    object: str = "",  # noqa: A002 - the column is called so
    **details: Any,
) -> Evidence:
    """Evidence. Floats are rounded to what was measured; unknown keys and details are left out."""
    keys = {name: value for name, value in (keys or {}).items() if value not in (None, "", b"")}
    kept = {k: _rounded(v) if isinstance(v, float) else v for k, v in details.items()}
    kept = {k: v for k, v in kept.items() if v not in (None, "")}
    return Evidence(
        table, what, _rounded(value), unit, column or "", _rounded(baseline), t_ns, end_ns, keys, object, kept
    )


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}") if isinstance(value, float) else value
