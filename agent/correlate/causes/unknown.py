"""None of the others."""

from __future__ import annotations

from agent.correlate.catalogue import Cause

CAUSE = Cause("unknown", 1000, "no recorded row explains it", {}, "see what was ruled out: tickscope explain last")
