"""Requests that are given up after the same time each, where none were before: a time-out, or a deadline, expires.

Waits with one time-out differ only by the kernel's ticks and scheduling. Of three waits that users end at random,
spread over a decade or more, three in 10,000 are equally alike. Three alike in ten seconds, more than half of all that
are given up, are reported if in nine of ten seconds none is.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.abandoned import LAST_S, READS, AbandonedWatch, typical_request
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, opening, render, value, when

_LEAST, _MOST_OF = 3, 0.6
_ALIKE, _TICKS_NS = 0.03, 10_000_000


def judge(watch: AbandonedWatch, second: Second) -> None:
    for slot in second.slots.tolist():
        given = watch.lately(slot, second.at)
        alike = _alike(given)
        if len(alike) < max(_LEAST, _MOST_OF * len(given)) or alike["t_ns"].max() < second.at * SECOND:
            continue
        age = float(np.median(alike["duration_ns"]))
        begun, over = int((alike["t_ns"] - alike["duration_ns"]).min()), int(alike["t_ns"].max())
        if (episode := watch.extended(SYMPTOM.name, slot, second.at, age, over)) is not None:
            new = np.count_nonzero(alike["t_ns"] >= second.at * SECOND)
            episode.facts["n"] += float(new)
            continue
        row = typical_request(alike)
        each = len(np.unique(alike["pid"])) >= _LEAST  # one process per request: no process is known for long
        usual = watch.usually("given", slot, second.at, LAST_S, 0 if each else int(row["tick"]) // 100)
        if usual is None or usual > 0:
            continue
        watch.who[slot] = row
        metric = "connect_ns" if 2 * np.count_nonzero(alike["connecting"]) > len(alike) else "age_ns"
        its = {"metric": metric, "unit": SYMPTOM.unit, "start_ns": begun, "end_ns": over, "recurs_by": "age_ns"}
        episode = watch.begin(SYMPTOM.name, slot, second.at, age, LAST_S, **its)
        episode.facts["n"] = float(len(alike))


def _alike(given: np.ndarray) -> np.ndarray:
    """The largest group of requests with nearly equal ages."""
    if not len(given):
        return given
    ages = np.sort(given["duration_ns"])
    least = ages[int(np.argmax(np.searchsorted(ages, _most(ages), "right") - np.arange(len(ages))))]
    return np.asarray(given[(given["duration_ns"] >= least) & (given["duration_ns"] <= _most(least))])


def _most(ages: np.ndarray) -> np.ndarray:
    return np.asarray(ages + np.maximum(_ALIKE * ages, _TICKS_NS))


def clause(episode: Episode) -> Words:
    return render(
        "{what} got no answer and were given up {n}, each after {age}, {when}",
        what=opening(episode.subject),
        n=value(episode.facts["n"], "time"),
        age=measured(episode.value, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "deadline_exceeded",
    49,
    "a client closes connections without an answer, each after the same time: its timeout or deadline expires",
    "a process and a peer that it calls",
    "ns",
    "tcp_close",
    READS,
    clause,
    'see which server did not answer: tickscope query tcp_close --where "waited_ns > 0" --group-by peer; what that'
    " server did meanwhile: tickscope query slow_syscall",
    AbandonedWatch,
    judge,
    measured={"age_ns": "waited_ns", "connect_ns": "duration_ns"},
    tables={"connect_ns": "tcp_connect"},
)
