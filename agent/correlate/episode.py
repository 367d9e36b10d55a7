"""The correlator's own records: an episode of a symptom, a verdict on a cause. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    habit: by which of its values it may be one (agent/correlate/habits.py); empty: it is told however often it comes.
    blame: the cause of its finding, where that is known. taker: of a limiter that is asked at several places, the other
    place that took most.
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
    habit: str = ""
    blame: str = ""
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


NOBODY = Culprit()


@dataclass(frozen=True)
class Verdict:
    """What one rule says of one episode.

    score: 0 (looked at, does not explain it) to 1. scope: what it is about, for example the peer; empty matches any.
    words: complete "... because" (or say what was looked at, where the score is 0). evidence: rows of JSON members.
    detail: the finer word of the cause (``finding.cause_detail``). blamed: the processes that it is about beside the
    culprit.
    full: words that do not go by who suffered, where ``words`` do.
    """

    cause: str
    score: float
    scope: str
    words: Words
    evidence: tuple[dict[str, object], ...] = ()
    detail: str = ""
    culprit: Culprit = NOBODY
    blamed: tuple[int, ...] = ()
    full: Words = ""


def item(table: str, what: str, value: float | str | None, unit: str = "", **more: object) -> dict[str, object]:
    """An entry of a finding's evidence. ``column``: of that table, whose value it is; none where rows were counted.
    Unknown members are left out, floats rounded to what was measured.
    """
    entry: dict[str, object] = {"table": table, "what": what, "value": value, "unit": unit, **more}
    return {
        k: float(f"{v:.6g}") if isinstance(v, float) else v
        for k, v in entry.items()
        if v not in (None, "") and not _endless(v)
    }


def _endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
