"""Where threads of a few processes run, for seconds; see bpf/oncpu.bpf.c and agent/investigate/."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

PROBE = Probe(
    name="oncpu",
    parts=("profile.h",),
    programs=(Program("oncpu_on_runtime", target="sched_stat_runtime", on_demand=True, loses="where threads run"),),
    maps=("oncpu_sums", "oncpu_stacks"),
    counts=("oncpu_sums",),
    profiling=True,
)
