"""Closer looks while something is wrong (agent/investigate/)."""

from __future__ import annotations

from agent.columns import enum, f64, hist, i64, text
from agent.tables.names import SYMPTOMS
from agent.tables.shared import INTERVAL, LOOK, PROC, table

DECLARED = (
    table(
        "investigation",
        "a closer look at a process, for seconds, while something is wrong with it or with whom it holds up: its latest"
        " state",
        text(
            "investigation",
            16,
            "its name, by which its rows are found: LOOK.NUMBER; the look's own rows, as of disks, have number 0",
        ),
        *PROC,
        i64("uid", "the process's real user"),
        text("symptom", 24, "what was wrong", names=SYMPTOMS),
        text("finding_id", 32, "the finding that it became, where one is known by now", "tickscope.finding.id"),
        enum("state", "running done failed", "failed: nothing could be attached"),
        text("looked", 96, "what was attached: calls oncpu offcpu block contention reclaim synack"),
        i64("begun_ns", "when it began, CLOCK_BOOTTIME", "ns"),
        i64("interval_ns", "for how long", "ns"),
        i64("found", "rows that it made"),
        text("reason", 160, "what of it failed, and why"),
        measure="interval_ns",
        latest_by="investigation",
    ),
    table(
        "off_cpu",
        "where threads of a process were while they did not run, during a closer look: time by stack, the longest"
        " first",
        *PROC,
        LOOK,
        INTERVAL,
        enum(
            "state",
            "sleeping uninterruptible ready",
            "uninterruptible: for a disk or a lock of the kernel's, mostly; ready: kept waiting for a processor",
        ),
        text("syscall", 24, "the system call that it was in; empty: none, as at a page fault", "syscall.name"),
        enum(
            "kind",
            "slow waiting",
            "held up, or waiting for input, time or others, as in slow_syscall; a sleep outside of calls is slow",
        ),
        i64("count", "times"),
        i64("sum_ns", "total, summed over threads; a thread that did not run in all the time counts, too", "ns"),
        i64("max_ns", "the longest", "ns"),
        i64(
            "waker_pid",
            "of a thread that owed an answer and slept when the look began, of which there are rows of its own, with"
            " tid, up to each time when it was woken: who woke it by a system call; null where an interrupt did it (a"
            " timer, a packet) while nobody was in one there",
        ),
        i64("waker_tid", "its thread"),
        text("waker_comm", 16, "its name, or `interrupt`"),
        text(
            "kernel_stack",
            512,
            "the kernel's functions, innermost first; the name of one alone where the thread slept from before the look"
            " to after it; a number where the name is not known",
        ),
        text(
            "user_stack",
            768,
            "the program's functions, innermost first, as far as frame pointers lead; FILE+0xOFFSET where a file does"
            " not name them",
        ),
        measure="sum_ns",
    ),
    table(
        "on_cpu",
        "where threads of a process ran, during a closer look: time by thread and stack, the longest first",
        *PROC,
        LOOK,
        INTERVAL,
        text("syscall", 24, "the system call that it was in; empty: none, it ran its own code", "syscall.name"),
        i64("count", "times that it was looked at"),
        i64("sum_ns", "time on a processor", "ns"),
        text("user_stack", 768, "as in off_cpu; empty where it was not at hand"),
        measure="sum_ns",
    ),
    table(
        "block_io",
        "requests of a process to a disk during a closer look; one row a disk for all together",
        *PROC,
        LOOK,
        INTERVAL,
        text("device", 16, "the disk: sda nvme0n1 dm-0"),
        enum("op", "read write flush discard other all", "all: the disk's own sum"),
        i64("count", "requests that were completed"),
        i64("unfinished", "that were not, at the end; their time so far counts"),
        i64("bytes", "of these", "bytes"),
        i64("errors", "that failed"),
        i64("sum_ns", "time that the device had them", "ns"),
        i64("max_ns", "for the slowest", "ns"),
        i64("queued_ns", "time that they waited before the device had them", "ns"),
        f64("in_flight", "requests with the device, on average"),
        hist("ns"),
        measure="max_ns",
    ),
    table(
        "lock_contention",
        "waits for one lock of the kernel's own during a closer look, on one way through the kernel",
        *PROC,
        LOOK,
        INTERVAL,
        text("lock", 64, "its name where it has one, else the function that takes it"),
        text("address", 20, "where it is"),
        text("kind", 24, "spin mutex rtmutex percpu, read, write"),
        enum(
            "path",
            "process handshake",
            "of the process; between a SYN's arrival and the SYN-ACK, in whichever process's time",
        ),
        i64("count", "waits"),
        i64("sum_ns", "total", "ns"),
        i64("max_ns", "the longest", "ns"),
        text("kernel_stack", 512, "as in off_cpu"),
        measure="sum_ns",
    ),
    table(
        "memory_stall",
        "time that a process's threads took to make room in memory, during a closer look",
        *PROC,
        LOOK,
        INTERVAL,
        enum("kind", "reclaim compaction", "of pages; for large pages"),
        i64("count", "times"),
        i64("sum_ns", "total", "ns"),
        i64("max_ns", "the longest", "ns"),
        i64("pages", "pages that were freed"),
        measure="sum_ns",
    ),
    table(
        "syn_ack",
        "how long this host took from a SYN's arrival to its SYN-ACK, by local port, during a closer look",
        LOOK,
        INTERVAL,
        i64("netns", "inode number of the network namespace"),
        i64("sport", "local port", "", "network.local.port"),
        i64("count", "SYNs answered"),
        i64("sum_ns", "total", "ns"),
        i64("max_ns", "the longest", "ns"),
        hist("ns"),
        measure="max_ns",
    ),
)
