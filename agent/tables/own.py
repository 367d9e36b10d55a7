"""Of tickscope itself: what was lost, and its probes."""

from __future__ import annotations

from agent.columns import enum, i64, text
from agent.tables.shared import table

DECLARED = (
    table(
        "loss",
        "records lost",
        enum("stage", "kernel ring intake store export", "where"),
        text("source", 32, "of what"),
        i64("count", "records; null where it cannot be known"),
        i64("from_ns", "not before, CLOCK_BOOTTIME", "ns"),
        i64("to_ns", "not after, CLOCK_BOOTTIME", "ns"),
        measure="count",
    ),
    table(
        "probe_status",
        "a probe's state",
        text("probe", 32, "family or program"),
        enum("state", "attached degraded unavailable off", "its state"),
        text("reason", 256, "why"),
        text("remedy", 160, "what to do"),
        i64("hits", "times it ran"),
        i64("run_ns", "time it ran", "ns"),
        measure="hits",
    ),
)
