"""What moves a clock, and who; see bpf/clock.bpf.c. Its records are joined to rows in agent/clock/join.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.instruments.kind import setup as begin_kinds
from agent.kernel.probe import Parts, Probe, Program, Ring
from agent.kernel.wire_structs import wire_records

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.loaded_families import Family
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

_LIBC = "who adjusts a frequency or an offset, on kernels before 6.14"


def setup(family: Family, kernel: KernelSource, helper: Attacher, targets: Targets, parts: Parts) -> Iterable[Source]:
    """The clock source, fed by this family. parts: ``watch`` (agent.clock.watch_process.WatchProcess), ``history`` and
    ``last`` (agent.clock.last.LastReading), which may be None.
    """
    from agent.clock.clock_source import ClockSource

    source = ClockSource(parts.watch, parts.history, parts.last)
    for ring in ("clock_events", "clock_refused"):
        kernel.subscribe(ring, source.on_events)
    parts.watch.follow(lambda pid: kernel.control.__setitem__("watch_tid", pid))
    if "clock_out" in family.programs:
        begin_kinds(family, kernel, helper, targets, parts)
    return (source,)


PROBE = Probe(
    name="clock",
    programs=(
        Program(
            "clock_woke",
            target="sched_waking",
            loses="who steps a clock by a system call of its own, without the C library",
        ),
        Program(
            "clock_ask",
            target="cap_capable",
            fallback="cap_capable",
            loses="adjustments by programs without the C library, who tries and may not",
            optional=True,
        ),
        Program("clock_in_settime", "uprobe", loses=_LIBC),
        Program("clock_in_settimeofday", "uprobe", loses=_LIBC),
        Program("clock_in_adjtime", "uprobe", loses=_LIBC),
        Program("clock_in_adjtimex", "uprobe", loses=_LIBC),
        Program("clock_in_clock_adjtime", "uprobe", loses=_LIBC),
        Program("clock_out", "uretprobe", loses=_LIBC),
    ),
    # up to three records make one call, and a call with the agent's own readings one row (agent/clock/join.py)
    rings=tuple(Ring(name, "clock_event", wire_records) for name in ("clock_events", "clock_refused")),
    maps=("clock_last",),
    counts=("clock_shares",),
    parts=("clock_call.h",),
    setup=setup,
)
