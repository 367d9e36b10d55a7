"""Processes that ended unexpectedly."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.processes import READS, ProcessWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, render, value


def judge(watch: ProcessWatch, second: Second) -> None:
    """Bad: it was killed, crashed or failed, after it had run for some time, or like the process before it."""
    for slot in second.slots.tolist():
        termination = watch.now[slot]
        lived_ns = termination.from_ns - termination.tick * 10_000_000
        if termination.stop or termination.orderly or (lived_ns < watch.config.lived_ns and termination.lives == 1):
            continue
        end_ns = min(termination.from_ns + 1, (second.at + 1) * SECOND)
        watch.begin(SYMPTOM.name, slot, second.at, float(termination.lives), 1, end_ns=end_ns)


def clause(episode: Episode) -> Words:
    if episode.value > 1:
        return render(
            "{comm} ended {n}, a new process each time, the last one {who}, at {at}",
            comm=episode.comm,
            n=value(episode.value, "time"),
            who=episode.subject,
            at=episode.start_ns,
        )
    return render("{who} ended at {at}", who=episode.subject, at=episode.start_ns)


SYMPTOM = Symptom(
    "process_gone",
    52,
    "a process that others depend on was killed, crashed, or failed; or a worker process was killed from outside",
    "a process",
    "",
    "process_event",
    READS,
    clause,
    "see how it ended, and which process ended it: tickscope query process_event",
    ProcessWatch,
    judge,
)
