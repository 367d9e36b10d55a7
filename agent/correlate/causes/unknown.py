"""None of the others."""

from __future__ import annotations

from agent.correlate.catalogue import Cause

CAUSE = Cause("unknown", 1000, "no cause was seen", {}, "see what was looked at: tickscope explain last")
