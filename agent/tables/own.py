"""Of the host and of tickscope itself: containers, what was lost, and the probes."""

from __future__ import annotations

from agent.columns import enum, i64, text
from agent.tables.shared import CONTAINER, PROC, UNIT, table

DECLARED = (
    table(
        "container",
        "a container in which a process with rows ran, by its runtime's own files; at the first of its rows, and again"
        " every ten minutes while it has rows",
        PROC[-1],
        *CONTAINER,
        text("pod_uid", 64, "uid of the pod", "k8s.pod.uid"),
        text("node", 64, "Kubernetes node (`k8s.node.name` of the resource attributes), else empty", "k8s.node.name"),
        UNIT,
        enum("runtime", "containerd crio podman docker", "the runtime", "container.runtime.name"),
        latest_by="container_id",
        as_of="t_ns",
    ),
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
