"""Waits for the kernel's own locks, for seconds; see bpf/contention.bpf.c and agent/investigate/."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

PROBE = Probe(
    name="contention",
    parts=("profile.h", "synack.h"),
    after=("synack",),
    programs=tuple(  # kernel 5.19
        Program(
            f"contention_on_{end}",
            target=f"contention_{end}",
            on_demand=True,
            optional=True,
            loses="locks of the kernel",
        )
        for end in ("end", "begin")
    ),
    maps=("contention_sums", "contention_begun", "profile_stacks"),
    counts=("contention_sums", "contention_begun"),
    profiling=True,
)
