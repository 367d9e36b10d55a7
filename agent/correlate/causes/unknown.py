"""None of the others."""

from __future__ import annotations

from agent.correlate.catalogue import Cause

CAUSE = Cause(
    "unknown", 1000, "nothing that was recorded explains it", {}, "see what was looked at: tickscope explain last"
)
