"""What processes use and have."""

from __future__ import annotations

from agent.columns import enum, i64, text
from agent.tables.shared import INTERVAL, PROC, table

DECLARED = (
    table(
        "resource",
        "what a watched process (one that reports decisions, or serves others) has of something at a poll: where that"
        " nears its end or is withheld, and now and then",
        *PROC,
        enum(
            "kind",
            "cpu memory fd disk oom io iops pids",
            "processor, memory, descriptors, a file system's room; oom: the kernel killed it for want of memory; io,"
            " iops: bytes and requests to a disk that its cgroup limits; pids: processes and threads of its cgroup",
        ),
        text(
            "object",
            128,
            "the cgroup that withholds it, or the file system; steal: the hypervisor of this host; pressure: how long"
            " any task of the host waited (PSI)",
        ),
        INTERVAL,
        i64("used", "descriptors, or bytes; of a file system that is short of them, files; io, iops: in a second"),
        i64("limit", "how many it may have; cpu: periods of the quota in the interval"),
        i64(
            "events",
            "in the interval: periods in which a quota withheld the processor, charges beyond the memory's limit,"
            " processes killed; pids: that could not be started",
        ),
        i64("faults", "memory: pages that it had to read in the interval"),
        i64("waited_ns", "cpu: for how long it was withheld, summed over processors", "ns"),
        text("device", 64, "io, iops: the disk, and what is made of it: sda dm-0"),
        enum("direction", "read write", "io, iops: of what there is that limit"),
        i64("uid", "the process's real user"),
        measure="used",
    ),
    table(
        "cpu_use",
        "what a watched process ran of the processors in an interval, all its threads together; none where that is less"
        " than 20 ms",
        *PROC,
        INTERVAL,
        i64("user_ns", "of its own code", "ns"),
        i64("system_ns", "in the kernel, for it", "ns"),
        measure="user_ns",
    ),
)
