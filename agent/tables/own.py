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
        text("probe", 32, "family of BPF programs, or the observed program"),
        enum("state", "attached degraded unavailable off", "state of the probe"),
        text("reason", 256, "reason of the state"),
        text("remedy", 160, "what to do about it"),
        i64("hits", "runs of its programs; counted while kernel.bpf_stats_enabled is 1"),
        i64("run_ns", "total run time of its programs, likewise", "ns"),
        measure="hits",
    ),
)
