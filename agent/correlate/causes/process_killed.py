"""A process ended: killed, crashed, or by itself."""

from __future__ import annotations

from agent.correlate.catalogue import Cause
from agent.correlate.process_causes import READS, explains

CAUSE = Cause(
    "process_killed",
    19,
    "a process was killed, crashed, or exited",
    READS,
    "see which process ended it (tickscope query process_event), its log, and its unit's state; after oom, the limit of"
    " its cgroup",
    explains("process_killed", lambda termination: 0.0 if termination.stop else 0.99),
    merge_group="process end",
)
