"""On-demand profiles while something is wrong (agent/investigate/)."""

from __future__ import annotations

from agent.columns import enum, f64, hist, i64, text
from agent.tables.names import SYMPTOMS
from agent.tables.shared import INTERVAL, INVESTIGATION, PROC, table

DECLARED = (
    table(
        "investigation",
        "an on-demand profile of a process, in its latest state. The process, or one that waits for it, has a symptom",
        text(
            "investigation",
            16,
            "id of the profile, PROFILE.NUMBER: the same in its rows of other tables; rows of the whole"
            " host, such as disks, have number 0",
        ),
        *PROC,
        i64("uid", "real user id of the process"),
        text("symptom", 24, "the symptom (docs/symptoms-causes.md)", names=SYMPTOMS),
        text("finding_id", 32, "the finding that includes the symptom, if there is one yet", "tickscope.finding.id"),
        enum("state", "running done failed", "failed: no program could be attached"),
        text("families", 96, "attached families: calls oncpu offcpu block contention reclaim synack"),
        i64("begun_ns", "start of the profile, CLOCK_BOOTTIME", "ns"),
        i64("interval_ns", "duration", "ns"),
        i64("found", "number of rows of the profile in other tables"),
        text("reason", 160, "what failed, and why"),
        measure="interval_ns",
        latest_by="investigation",
    ),
    table(
        "off_cpu",
        "the time that threads of a process did not run during an on-demand profile, for one stack. Rows with the most"
        " time come first",
        *PROC,
        INVESTIGATION,
        INTERVAL,
        enum(
            "state",
            "sleeping uninterruptible ready",
            "uninterruptible: mostly waiting for a disk or a kernel lock; ready: waiting for a CPU",
        ),
        text("syscall", 24, "current system call; empty: none, as in a page fault", "syscall.name"),
        enum(
            "kind",
            "slow waiting",
            "as in slow_syscall: slow, or waiting for input, a timer or another thread; a sleep outside"
            " of system calls is slow",
        ),
        i64("count", "number of sleeps"),
        i64("sum_ns", "total over all threads, including threads that never ran during the profile", "ns"),
        i64("max_ns", "the longest", "ns"),
        i64(
            "waker_pid",
            "process that woke the thread by a system call; null: an interrupt (timer, packet) did. Only for a thread"
            " that had read a request and slept when the profile began: it has one row for each sleep",
        ),
        i64("waker_tid", "thread that woke it"),
        text("waker_comm", 16, "command name of that thread, or `interrupt`"),
        text(
            "kernel_stack",
            512,
            "kernel functions, innermost first; an address if the name is unknown. Only the innermost one if the thread"
            " slept during the whole profile",
        ),
        text(
            "user_stack",
            768,
            "functions of the program, innermost first, as far as frame pointers reach; FILE+0xOFFSET if"
            " the file has no symbols",
        ),
        measure="sum_ns",
    ),
    table(
        "on_cpu",
        "the CPU time of a process during an on-demand profile, for one thread and stack. Rows with the most time come"
        " first",
        *PROC,
        INVESTIGATION,
        INTERVAL,
        text("syscall", 24, "current system call; empty: none, it ran its own code", "syscall.name"),
        i64("count", "number of samples"),
        i64("sum_ns", "time on a CPU", "ns"),
        text("user_stack", 768, "as in off_cpu; empty if the stack could not be read"),
        measure="sum_ns",
    ),
    table(
        "block_io",
        "the requests of one process to one disk during an on-demand profile; op all: the requests of"
        " all processes to that disk",
        *PROC,
        INVESTIGATION,
        INTERVAL,
        text("device", 16, "the disk: sda nvme0n1 dm-0"),
        enum("op", "read write flush discard other all", "all: all operations of all processes"),
        i64("count", "completed requests"),
        i64(
            "unfinished",
            "requests that were not completed at the end of the profile; their time until then is included",
        ),
        i64("bytes", "bytes of the completed requests", "bytes"),
        i64("errors", "failed requests"),
        i64("sum_ns", "time in the device, in total", "ns"),
        i64("max_ns", "time in the device of the slowest request", "ns"),
        i64("queued_ns", "time in the queue before the device, in total", "ns"),
        f64("in_flight", "average number of requests in the device"),
        hist("ns"),
        measure="max_ns",
    ),
    table(
        "lock_contention",
        "the waits of one process for one kernel lock on one kernel stack during an on-demand profile",
        *PROC,
        INVESTIGATION,
        INTERVAL,
        text("lock", 64, "name of the lock, else of the function that takes it"),
        text("address", 20, "address of the lock"),
        text("kind", 24, "kind of lock: spin mutex rtmutex percpu; and read or write"),
        enum(
            "path",
            "process handshake",
            "process: a wait of the process; handshake: a wait between a SYN and its SYN-ACK, in any process",
        ),
        i64("count", "waits"),
        i64("sum_ns", "total", "ns"),
        i64("max_ns", "the longest", "ns"),
        text("kernel_stack", 512, "as in off_cpu"),
        measure="sum_ns",
    ),
    table(
        "memory_stall",
        "the time that the threads of one process spent in memory reclaim or compaction during an on-demand profile",
        *PROC,
        INVESTIGATION,
        INTERVAL,
        enum("kind", "reclaim compaction", "reclaim of pages, or compaction for huge pages"),
        i64("count", "number of stalls"),
        i64("sum_ns", "total", "ns"),
        i64("max_ns", "the longest", "ns"),
        i64("pages", "freed pages"),
        measure="sum_ns",
    ),
    table(
        "syn_ack",
        "the times from the arrival of a SYN to its SYN-ACK, for one local port, during an on-demand profile",
        INVESTIGATION,
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
