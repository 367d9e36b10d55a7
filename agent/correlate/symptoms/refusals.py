"""Decisions that are refused, or fail, more often."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.limiters import READS, LimiterWatch, seen
from agent.correlate.watch import Rise, Second
from agent.correlate.words import capital, percent, when


def judge(watch: LimiterWatch, second: Second) -> list[Episode]:
    """A lasting rise of the share, of at least some number."""
    n = watch.config.persist_s
    bad = sum(watch.series.recent(metric, second.slots, second.at, n) for metric in ("refused", "errors"))
    many = np.nansum(bad, axis=1) >= watch.config.refusals_min
    return watch.rises(Rise(SYMPTOM.name, "share", SYMPTOM.unit, watch.config.refusal_rise, 1.0), second, watch.warm(second) & many)


def clause(e: Episode) -> str:
    failed = e.facts.get("errors", 0) > e.facts.get("refused", 0)
    return f"{capital(e.subject)} {'failed' if failed else 'refused'} up to {percent(e.value)} of decisions{seen(e)} instead of {percent(e.base)} {when(e)}"


SYMPTOM = Symptom(
    "refusals", 30, "a limiter refuses, or fails, a larger share of decisions than it usually does", "a limiter of a process", "", "limiter_decision",
    READS, clause, "compare what was asked for with the limit: tickscope limiters", LimiterWatch, judge, measured={"share": "result"})
