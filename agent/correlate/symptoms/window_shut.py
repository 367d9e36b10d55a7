"""Data written to a connection is not read: the other end does not read, and its window stays closed.

The kernel had more than 64 KiB to send, no window for it, and next to nothing acknowledged for a second:
that is a fact, not an estimate. A public server always has clients that stop reading. So for data that a server wrote,
only readers on this host count.
"""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.stuck import READS, StuckWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, value, when

_LEAST_NS = 1.0 * SECOND


def judge(watch: StuckWatch, second: Second) -> None:
    for slot in second.slots.tolist():
        jam = watch.jams[slot]
        if jam.stuck_ns < _LEAST_NS or not jam.new:
            continue
        if jam.server != jam.peer and jam.reader is None:
            continue
        if watch.extended(SYMPTOM.name, slot, second.at, float(jam.stuck_ns), jam.last_ns):
            continue
        its = {"metric": "stuck_ns", "recurs_by": "stuck_ns", "start_ns": jam.since_ns, "end_ns": jam.last_ns}
        episode = watch.begin(SYMPTOM.name, slot, second.at, float(jam.stuck_ns), 1, unit=SYMPTOM.unit, **its)
        episode.facts.update(unsent=float(jam.unsent), unread=float(jam.unread))


def clause(episode: Episode) -> Words:
    return render(
        "The other end of the {subject} did not read for {took}, with {unsent} unsent, {when}",
        subject=episode.subject,
        took=measured(episode.value, episode.unit),
        unsent=value(episode.facts["unsent"], "byte"),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "window_shut",
    63,
    "the receive window of a connection stays closed: the other end does not read",
    "a connection",
    "ns",
    "socket_queue",
    READS,
    clause,
    "see what the reader does instead: tickscope query slow_syscall; ss -tm shows what is unread",
    StuckWatch,
    judge,
)
