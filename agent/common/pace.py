"""When the agent works: its seconds, and breaks in long work, so that it never holds a CPU for long."""

from __future__ import annotations

import time

#: How long a thread works before it sleeps, and how long it sleeps. Then another thread can run, in any preemption mode
#: of the scheduler.
RUN_NS, REST_S = 2_000_000, 0.0005
#: How often the loop drains its sources and hands their rows on.
BEAT_NS = 200_000_000
#: Rings and processors deliver out of order by less than this; the correlator works behind it.
WATERMARK_NS = 300_000_000


#: Sums of the kernel's maps end this long before a whole second, so that they are judged with that second.
LEAD_NS = 100_000_000


def second_of(now_ns: int) -> int:
    """Number of the last whole second behind the watermark. What is done once a second is done when it changes: all at
    the same beat. now_ns: CLOCK_BOOTTIME.
    """
    return (now_ns - WATERMARK_NS) // 1_000_000_000


def beat_after(t_ns: int) -> int:
    """The first beat at or after t_ns, CLOCK_BOOTTIME. One beat comes as soon as a whole second lies behind the
    watermark.
    """
    return -((WATERMARK_NS - t_ns) // BEAT_NS) * BEAT_NS + WATERMARK_NS


def interval_of(now_ns: int, length_ns: int = 1_000_000_000) -> int:
    """Number of the interval of the kernel's sums; they end LEAD_NS before whole seconds. now_ns: CLOCK_BOOTTIME."""
    return (now_ns + LEAD_NS) // length_ns


class Pace:
    """The pace of one thread. Call ``rest`` between pieces of work of a few milliseconds."""

    def __init__(self) -> None:
        self._since_ns = time.monotonic_ns()

    def waited(self) -> None:
        """Notes that the thread has just slept for another reason."""
        self._since_ns = time.monotonic_ns()

    def rest(self) -> None:
        """Sleeps for REST_S if the thread has worked for RUN_NS since it last slept."""
        if time.monotonic_ns() - self._since_ns >= RUN_NS:
            time.sleep(REST_S)
            self._since_ns = time.monotonic_ns()
