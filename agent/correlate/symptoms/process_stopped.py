"""Processes that are stopped."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.processes import READS, ProcessWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, when


def judge(watch: ProcessWatch, second: Second) -> None:
    """Bad: it was stopped, or frozen, long enough for its clients to wait."""
    until_ns = (second.at + 1) * SECOND
    for slot in second.slots.tolist():
        termination = watch.now[slot]
        took = termination.lasted(until_ns)
        least_ns = watch.config.stopped_ns if termination.needed else watch.config.worker_stopped_ns
        if not termination.stop or took < least_ns:
            continue
        episode, end_ns = watch.active.get((SYMPTOM.name, slot)), min(termination.to_ns, until_ns)
        if episode is not None and episode.start_ns == termination.from_ns:
            watch.extend(episode, second.at, float(took), end_ns)
        else:
            its = {"unit": SYMPTOM.unit, "end_ns": end_ns, "bar": float(least_ns)}
            watch.begin(SYMPTOM.name, slot, second.at, float(took), 1, **its)


def clause(episode: Episode) -> Words:
    return render(
        "{who} was stopped for {took} {when}",
        who=episode.subject,
        took=measured(episode.value, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "process_stopped",
    54,
    "a process that others depend on was stopped or frozen, or a worker process was stopped",
    "a process",
    "ns",
    "process_event",
    READS,
    clause,
    "see who stopped it: tickscope query process_event; kill -CONT continues it",
    ProcessWatch,
    judge,
)
