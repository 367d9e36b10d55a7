"""Threads that make room in memory themselves, for seconds; see bpf/reclaim.bpf.c and agent/investigate/."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

_PAIRS = (
    ("end", "mm_vmscan_direct_reclaim_end", "begin", "mm_vmscan_direct_reclaim_begin"),
    ("cgroup_end", "mm_vmscan_memcg_reclaim_end", "cgroup_begin", "mm_vmscan_memcg_reclaim_begin"),
    ("compacted", "mm_compaction_end", "compaction", "mm_compaction_begin"),
)

PROBE = Probe(
    name="reclaim",
    parts=("profile.h",),
    programs=tuple(
        Program(
            f"reclaim_on_{name}",
            target=target,
            on_demand=True,
            optional=True,
            loses="threads that make room in memory",
        )
        for pair in _PAIRS
        for name, target in (pair[:2], pair[2:])
    ),
    maps=("reclaim_sums", "reclaim_begun"),
    counts=("reclaim_sums", "reclaim_begun"),
    profiling=True,
)
