"""Where threads of a few processes are while they do not run, for seconds; see bpf/offcpu.bpf.c and
agent/investigate/.
"""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

PROBE = Probe(
    name="offcpu",
    parts=("profile.h",),
    programs=(
        # In this order: a thread that is woken and switched while only the second is attached would count as one that
        # ran since the profile began, and its later wake-ups would be missing.
        Program("offcpu_on_waking", target="sched_waking", on_demand=True, loses="who woke a thread that slept"),
        Program("offcpu_on_switch", target="sched_switch", on_demand=True, loses="where threads sleep"),
    ),
    maps=("offcpu_sums", "offcpu_gone", "offcpu_woken", "profile_stacks"),
    counts=("offcpu_sums", "offcpu_gone", "offcpu_woken"),
    profiling=True,
)
