"""All system calls of a few processes, for seconds; see bpf/calls.bpf.c and agent/investigate/."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

PROBE = Probe(
    name="calls",
    parts=("profile.h",),
    programs=(  # in this order: a call counts once both its ends are seen
        Program("calls_on_exit", target="sys_exit", on_demand=True, loses="calls that do not block"),
        Program("calls_on_enter", target="sys_enter", on_demand=True, loses="calls that do not block"),
    ),
    maps=("calls_sums", "calls_open"),
    counts=("calls_sums", "calls_open"),
    profiling=True,
)
