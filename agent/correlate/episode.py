"""The correlator's own records: an episode of a symptom, a verdict on a cause. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.correlate.words import Words

#: Metrics of a port without a usual time, since it answers nothing: requests wait, or nobody accepts connections.
UNANSWERED, UNACCEPTED = "unanswered_ns", "unaccepted_ns"
#: ... of a queue of which no message was taken as far back as is known.
UNTAKEN = "untaken_s"


@dataclass(eq=False)
class Episode:
    """One symptom of one subject, from its first to its last bad second. Values are in ``unit``, times are
    CLOCK_BOOTTIME ns.

    slot: the subject's row in its series. base: the usual value; value: the worst one; bar: the threshold of a bad
    second. scope: common to episodes with one local cause (the process, or the queue). facts: values for the rules of
    causes. ranked: their last verdicts.

    recurs_by: the value by which a recurrence is recognised (agent/correlate/recurrence.py); empty: it is always
    reported. blame: the cause of its finding, if known. keys: what selects its rows in its symptom's table, beside the
    pid (see ``Evidence.keys``). taker: for a limiter that is used at several places, the other place that took most.

    Of a process that was waited for: tids: the threads that ended the waits, if they are known; spans: the waits;
    idle_at: the peer (as in rows) of which it waits for more work.
    """

    symptom: str
    key: tuple[object, ...]
    slot: int
    subject: str
    scope: str
    start_ns: int = 0
    end_ns: int = 0
    metric: str = ""
    unit: str = ""
    base: float = 0.0
    value: float = 0.0
    bar: float = 0.0
    last_bad: int = 0
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
    tids: frozenset[int] = frozenset()
    spans: tuple[tuple[int, int], ...] = ()
    idle_at: bytes = b""

    @property
    def stuck(self) -> bool:
        """Whether it is about a port that answers nothing, or a queue of which nothing is taken."""
        return self.metric in (UNANSWERED, UNACCEPTED, UNTAKEN)


@dataclass(frozen=True)
class Culprit:
    """The culprit, as far as known. pid: in the agent's namespace. object: a server's ip:port, a consumer, a device, a
    cgroup.
    """

    pid: int | None = None
    comm: str = ""
    object: str = ""


UNKNOWN_CULPRIT = Culprit()
#: The cause if nothing explains the symptom.
UNKNOWN = "unknown"


#: How much earlier and later than its episode the rows of evidence without a time may lie. Rows of an interval, and of
#: calls, come at its end; an effect shows after its cause.
_BEFORE_NS, _AFTER_NS = 2_000_000_000, 3_000_000_000


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence: the value of a column over a time, in the rows of a table that ``keys`` select.

    column: empty if rows were counted. what: a label. value, baseline (the usual value): in ``unit``; None: unknown.
    keys: values by column of the table, as queries show them (a peer: ``ip:port``, an enum: its name). t_ns, end_ns:
    the rows' times, CLOCK_BOOTTIME ns, both inclusive; None: not known yet (see ``within``). object: what it is about,
    for display. details: more values, by name.
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
        """The same with the time of the episode, if it has none of its own."""
        if self.t_ns is not None:
            return self if self.end_ns is not None else replace(self, end_ns=self.t_ns)
        return replace(self, t_ns=episode.start_ns - _BEFORE_NS, end_ns=episode.end_ns + _AFTER_NS)


@dataclass(frozen=True)
class Verdict:
    """The result of one rule for one episode.

    score: 0 (evaluated, does not explain it) to 1. scope: what it is about, for example the peer; empty matches any.
    words: completes "... because" (for a score of 0, what was evaluated). detail: of the cause
    (``finding.cause_detail``). blamed: processes that it is about, beside the culprit. short: replaces ``words``, in
    parentheses after the symptom, if both are about the same subject. via: processes that waited between the subject
    and what it is about (agent/correlate/walk.py). checked: false if nothing was recorded that could show this cause;
    the score is then 0, and the cause is not ruled out.
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
    checked: bool = True
    via: tuple[str, ...] = ()


#: In place of (network namespace, port), for a process that was not asked for an answer.
NOT_ASKED = (-1, -1)


@dataclass(frozen=True)
class Waited:
    """A process of this host that an episode's process waited for. share: of the lost time; sure: that it was this
    process. serves: (network namespace, port) of what it serves, or NOT_ASKED; where: the scope of verdicts about the
    wait for it. tids: its threads that ended the waits, if they are known; spans: the waits; longest_ns: the longest of
    them, if it is known. through: (comm, pid) of processes between, which only passed it on. idle_at: the peer of
    which it waits for more work. lock: the file whose lock it held.
    """

    pid: int
    comm: str
    share: float
    sure: float
    serves: tuple[int, int]
    where: str
    tids: frozenset[int] = frozenset()
    spans: tuple[tuple[int, int], ...] = ()
    longest_ns: float = 0.0
    through: tuple[tuple[str, int], ...] = ()
    idle_at: bytes = b""
    lock: str = ""


@dataclass(frozen=True)
class Ranked:
    """verdicts: best first. of: the episode's values then. tracked: the parts of the view that were read (see
    ``View.unchanged``). waited_for: processes, the next ones first (agent/correlate/walk.py).
    """

    verdicts: list[Verdict]
    of: tuple[object, ...]
    tracked: tuple[Any, ...]
    waited_for: tuple[int, ...] = ()


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
    """Makes a piece of evidence. Floats are rounded to the precision of a measurement; unknown keys and details are
    left out.
    """
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
