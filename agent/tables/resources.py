"""What processes use and have."""

from __future__ import annotations

from agent.columns import enum, i64, text
from agent.tables.shared import INTERVAL, PROC, table

DECLARED = (
    table(
        "resource",
        "one resource of one process that makes limiter decisions or serves connections, at one poll. Rows are written"
        " when the resource is nearly used up or throttled, and else from time to time",
        *PROC,
        enum(
            "kind",
            "cpu memory fd disk oom io iops pids",
            "CPU, memory, file descriptors, space on a file system; oom: killed for lack of memory; io,"
            " iops: bytes and requests to a disk under a cgroup limit; pids: processes and threads of the"
            " cgroup",
        ),
        text(
            "object",
            128,
            "the cgroup with the limit, or the file system; steal: the hypervisor of this host; pressure:"
            " time that any task of the host waited (PSI)",
        ),
        INTERVAL,
        i64(
            "used",
            "used amount: descriptors or bytes; files, if a file system runs out of inodes; io, iops: per second",
        ),
        i64("limit", "limit of used; cpu: quota periods in the interval"),
        i64(
            "events",
            "events in the interval. cpu: throttled periods; memory: charges beyond the limit; oom:"
            " processes killed; pids: failed forks",
        ),
        i64("faults", "memory: major page faults in the interval"),
        i64("waited_ns", "cpu: throttled time, summed over CPUs", "ns"),
        text("device", 64, "io, iops: the disk and the devices stacked on it: sda dm-0"),
        enum("direction", "read write", "io, iops: direction that is limited"),
        i64("uid", "real user id of the process"),
        measure="used",
    ),
    table(
        "cpu_use",
        "the CPU time of one process in an interval, all threads together; no row below 20 ms, except for children of"
        " a broker's client, from time to time",
        *PROC,
        i64("parent_pid", "its parent process"),
        INTERVAL,
        i64("user_ns", "user time", "ns"),
        i64("system_ns", "system time", "ns"),
        measure="user_ns",
    ),
)
