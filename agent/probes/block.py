"""What block devices do, for seconds; see bpf/block.bpf.c and agent/investigate/."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

PROBE = Probe(
    name="block",
    parts=("profile.h",),
    programs=(
        Program("block_on_complete", target="block_rq_complete", on_demand=True, loses="what disks do"),
        Program("block_on_issue", target="block_rq_issue", on_demand=True, loses="what disks do"),
        Program(
            "block_on_start",
            target="block_io_start",
            on_demand=True,
            optional=True,
            loses="which process requested it, if a kernel thread issues it",
        ),
    ),
    maps=("block_sums", "block_requests"),
    counts=("block_sums", "block_requests"),
    profiling=True,
)
