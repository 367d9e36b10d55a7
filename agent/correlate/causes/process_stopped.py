"""A process was stopped by a signal, or its cgroup was frozen."""

from __future__ import annotations

from agent.correlate.catalogue import Cause
from agent.correlate.process_causes import READS, explains

CAUSE = Cause(
    "process_stopped",
    17,
    "a process was stopped by a signal, or its cgroup was frozen",
    READS,
    "see who stopped it, and continue it (kill -CONT, cgroup.freeze, docker unpause): tickscope query process_event",
    explains("process_stopped", lambda termination: float(termination.stop)),
)
