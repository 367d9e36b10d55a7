"""Connections whose writer does not write."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.streams import READS, StreamWatch
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, when


def judge(watch: StreamWatch, second: Second) -> list[Episode]:
    """Bad: who reads waited far longer than ever, while who writes did not have to wait."""
    return watch.newly_opened(SYMPTOM.name, second.at)


def clause(e: Episode) -> Words:
    return render(
        "The writer of the {subject} wrote nothing for {took} (usually at most {base}) {when}",
        subject=e.subject,
        took=measured(e.value, e.unit),
        base=measured(e.base, e.unit),
        when=when(e),
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
