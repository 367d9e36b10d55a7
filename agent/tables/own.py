"""Of tickscope itself: what was lost, and its probes."""

from __future__ import annotations

from agent.columns import enum, i64, text
from agent.tables.shared import table

DECLARED = (
    table(
        "loss",
        "a loss of records",
        enum("stage", "kernel ring intake store export", "stage of the pipeline"),
        text("source", 32, "table or source of the lost records"),
        i64("count", "lost records; null: unknown"),
        i64("from_ns", "earliest time of the loss, CLOCK_BOOTTIME", "ns"),
        i64("to_ns", "latest time of the loss, CLOCK_BOOTTIME", "ns"),
        measure="count",
    ),
    table(
        "probe_status",
        "a probe's state",
        text("probe", 32, "family or program"),
        enum("state", "attached degraded unavailable off", "state of the probe"),
        text("reason", 256, "reason of the state"),
        text("remedy", 160, "what to do"),
        i64("hits", "number of runs"),
        i64("run_ns", "total run time", "ns"),
        measure="hits",
    ),
)
