"""A process ended: killed, crashed, or by itself."""

from __future__ import annotations

from agent.correlate.behind import READS, explains
from agent.correlate.catalogue import Cause

CAUSE = Cause(
    "process_killed",
    19,
    "a process was killed, crashed, or exited",
    READS,
    "see who ended it (tickscope query process_event), its log, and its unit's state; after oom, the limit of its"
    " cgroup",
    explains("process_killed", lambda fate: 0.0 if fate.stop else 0.99),
    kin="process end",
)
