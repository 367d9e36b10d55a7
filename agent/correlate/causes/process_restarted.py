"""A program is restarted, once or repeatedly."""

from __future__ import annotations

from agent.correlate.catalogue import Cause
from agent.correlate.process_causes import READS, explains

CAUSE = Cause(
    "process_restarted",
    18,
    "a program ended, or got a termination signal, and was restarted, once or repeatedly",
    READS,
    "see what ends it: tickscope query process_event, its log, and who starts it (systemctl status, kubectl describe)",
    explains("process_restarted", lambda termination: termination.restart),
    merge_group="process end",
)
