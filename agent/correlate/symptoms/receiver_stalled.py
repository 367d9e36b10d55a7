"""Connections with a reader that does not read."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.streams import READS, StreamWatch
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, when


def judge(watch: StreamWatch, second: Second) -> None:
    """Bad: the writer waited far longer than ever, while the reader, which usually waits for it, did not."""
    watch.judge(SYMPTOM.name, second.at)


def clause(episode: Episode) -> Words:
    return render(
        "The reader of the {subject} read nothing for {took} {when}",
        subject=episode.subject,
        took=measured(episode.value, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "receiver_stalled",
    62,
    "the reader of a steady connection does not read, so the writer waits",
    "a connection between processes of this host",
    "ns",
    "syscall_latency",
    READS,
    clause,
    "see what the reader does instead: tickscope query slow_syscall; ss -tm shows what is unread",
    StreamWatch,
    judge,
    measured={"stalled_ns": "max_ns"},
)
