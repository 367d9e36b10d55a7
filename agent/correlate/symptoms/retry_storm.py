"""A program with failing requests retries at once, again and again, far more often than it usually connects.

Every common back-off waits for tens of milliseconds before the second try, and longer before the third. A program that
retries within 20 ms of a failure in half of all twentieths of a second, for two seconds, has no back-off. Requests that
arrive at their usual rate and fail are no storm, since there are no more of them than usual.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.retries import READS, RetryWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, peer, render, value, when

_LEAST, _RATIO, _PARTS, _FAILED, _SECONDS = 20, 3.0, 10, 0.5, 2


def judge(watch: RetryWatch, second: Second) -> None:
    if not (watch.series.last("quick", second.slots, second.at) >= _PARTS).any():
        return
    tries, failed, quick = (
        np.nan_to_num(watch.series.recent(metric, second.slots, second.at, _SECONDS))
        for metric in ("tries", "failed", "quick")
    )
    storming = (tries >= _LEAST) & (failed >= _FAILED * tries) & (quick >= _PARTS)
    for i in np.flatnonzero(storming[:, -1]):
        slot, n = int(second.slots[i]), float(tries[i].max())
        if (episode := watch.extended(SYMPTOM.name, slot, second.at, n)) is not None:
            episode.facts["n"] += float(tries[i, -1])
            episode.facts["failed"] += float(failed[i, -1])
            continue
        who = watch.who(slot) if storming[i].all() else None
        if who is None:
            continue
        usual = watch.usually("tries", slot, second.at, _SECONDS, who.tick // 100)
        if usual is None or tries[i].min() <= _RATIO * usual:
            continue
        its = {"metric": "tries", "base": usual, "recurs_by": "tries", "start_ns": (second.at - _SECONDS + 1) * SECOND}
        episode = watch.begin(SYMPTOM.name, slot, second.at, n, _SECONDS, **its)
        episode.facts["n"], episode.facts["failed"] = float(tries[i].sum()), float(failed[i].sum())


def clause(episode: Episode) -> Words:
    raw = episode.key[1]
    assert isinstance(raw, bytes)
    return render(
        "{who} connected to {peer} up to {rate} (usually {base}), and {failed} of {n} failed, {when}",
        who=episode.subject.partition(", which")[0],
        peer=peer(raw),
        rate=value(episode.value, "1/s"),
        base=value(episode.base),
        failed=value(min(episode.facts["failed"], episode.facts["n"])),
        n=value(episode.facts["n"], "attempt"),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "retry_storm",
    87,
    "a program repeats failed connects at once, without back-off",
    "a program and a peer",
    "",
    "tcp_connect",
    READS,
    clause,
    "see which peer it connects to, and why that fails: tickscope query tcp_connect --group-by peer; its log",
    RetryWatch,
    judge,
)
