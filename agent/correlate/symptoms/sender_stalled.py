"""Connections with a writer that does not write."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.streams import READS, StreamWatch
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, when


def judge(watch: StreamWatch, second: Second) -> None:
    """Bad: the reader waited far longer than ever, while the writer did not have to wait."""
    watch.judge(SYMPTOM.name, second.at)


def clause(episode: Episode) -> Words:
    return render(
        "The writer of the {subject} wrote nothing for {took} (usually at most {base}) {when}",
        subject=episode.subject,
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "sender_stalled",
    64,
    "the writer of a steady connection writes nothing for far longer than ever, and then continues",
    "a connection between processes of this host",
    "ns",
    "syscall_latency",
    READS,
    clause,
    "see what the writer does instead: tickscope query slow_syscall",
    StreamWatch,
    judge,
    measured={"stalled_ns": "max_ns"},
)
