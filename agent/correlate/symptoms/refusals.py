"""Decisions that are refused, or fail, more often."""

from __future__ import annotations

from functools import partial

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.limiters import READS, LimiterWatch, seen
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, opening, render, value, when


def judge(watch: LimiterWatch, second: Second) -> None:
    """A lasting rise of the share, with a minimum number; sooner if the reason is visible: far more is requested, or
    the limit is lower.
    """
    config = watch.config
    lately = sum(
        np.nansum(watch.series.recent(metric, second.slots, second.at, config.persist_s), axis=1)
        for metric in ("refused", "errors")
    )
    if not np.any(lately >= config.refusals_min) and not watch.active:
        return
    for n, known in (
        (config.persist_s, np.ones(len(second.slots), np.bool_)),
        (config.explained_s, _explained(watch, second)),
    ):
        refused, failed = (
            np.nansum(watch.series.recent(metric, second.slots, second.at, n), axis=1)
            for metric in ("refused", "errors")
        )
        many = (refused + failed >= config.refusals_min) & (refused >= failed)  # else it is service_errors
        may = many & known
        rise = Rise(SYMPTOM.name, "share", SYMPTOM.unit, config.refusal_rise, 1.0, n)
        watch.rises(rise, second, partial(_allowed, watch, second, may))


def _allowed(watch: LimiterWatch, second: Second, may: np.ndarray, some: np.ndarray) -> np.ndarray:
    return np.asarray(may[some] & watch.warm(second, some))


def _explained(watch: LimiterWatch, second: Second) -> np.ndarray:
    """Subjects with more requested in each of these seconds than in any remembered one, or with a lower limit than
    before.
    """
    n = watch.config.explained_s
    demand, limit = (watch.series.recent(metric, second.slots, second.at, n) for metric in ("cost", "limit"))
    usual, was = (watch.series.baseline(metric, second.slots, second.at, n) for metric in ("cost", "limit"))
    more = (demand > 1.2 * usual.top[:, None]).all(axis=1)
    return np.asarray(more | (limit < 0.9 * was.median[:, None]).all(axis=1))


def clause(episode: Episode) -> Words:
    did = "failed in" if episode.facts.get("errors", 0) > episode.facts.get("refused", 0) else "refused"
    return render(
        "{limiter} {did} up to {share} of decisions{seen} (usually {base}) {when}",
        limiter=opening(episode.subject),
        did=did,
        share=value(episode.value, "ratio"),
        seen=seen(episode),
        base=value(episode.base, "ratio") if episode.base else "none",
        when=when(episode),
    )


SYMPTOM = Symptom(
    "refusals",
    30,
    "a limiter refuses or fails a larger share of decisions than usual",
    "a limiter of a process",
    "",
    "limiter_decision",
    READS,
    clause,
    "compare the requests with the limit: tickscope limiters",
    LimiterWatch,
    judge,
    measured={"share": "result"},
)
