"""What processes do: system calls, waits for a processor, ends."""

from __future__ import annotations

from agent.columns import boolean, enum, f64, hist, i64, peer, text
from agent.tables.shared import BASIS, BY, INTERVAL, LOOK, PROC, table

DECLARED = (
    table(
        "syscall_latency",
        "a process's use of one system call in an interval",
        *PROC,
        text("syscall", 24, "system call", "syscall.name"),
        i64("nr", "system call number", "", "syscall.nr"),
        INTERVAL,
        BASIS,
        f64("sample_rate", "share of the interval that was observed"),
        enum("kind", "slow waiting", "blocked basis: waiting for input or time, or held up"),
        peer("remote ip:port for waits on a socket"),
        i64("count", "calls, as seen"),
        i64("errors", "calls that returned an error"),
        i64("sum_ns", "total", "ns"),
        i64("max_ns", "longest", "ns"),
        i64("run_queue_ns", "blocked basis: runnable but not running", "ns"),
        hist("ns"),
        LOOK,
        measure="max_ns",
    ),
    table(
        "slow_syscall",
        "one slow system call, or a wait inside a decision",
        *PROC,
        enum("kind", "slow waiting", "held up, or waiting for input"),
        peer("remote ip:port where the fd is a socket"),
        text("syscall", 24, "system call", "syscall.name"),
        i64("nr", "system call number", "", "syscall.nr"),
        i64("fd", "file descriptor"),
        text("fd_type", 16, "what the fd is: file socket pipe eventfd ..."),
        i64("duration_ns", "the call's time (blocked basis: first block to last wake)", "ns"),
        i64("blocked_ns", "of it, asleep", "ns"),
        i64("run_queue_ns", "of it, runnable but not running", "ns"),
        BASIS,
        i64("ret", "return value, where seen"),
        i64("goroutine", "Go's g address", "", "go.goroutine"),
        i64("sock_id", "the socket, where the fd is one"),
        i64("holder_pid", "of a flock or fcntl that waited for a lock: the process that held it"),
        text("holder_comm", 16, "its command name"),
        i64("holder_start_ns", "and when it started, CLOCK_BOOTTIME", "ns"),
        text("file", 32, "of a file or directory: the last part of its path"),
        text("device", 16, "and the disk that it is on: sda nvme0n1 dm-0"),
        i64("written_bytes", "what the thread wrote in this call and since the one before in which it waited", "bytes"),
        boolean("frozen", "the file system was frozen (FIFREEZE: for a snapshot) when the call began to wait"),
        measure="duration_ns",
    ),
    table(
        "cpu_wait",
        "how long a process's threads were ready to run while another process ran, in an interval: waits of a"
        " millisecond or more, 64 pairs, of each user in turn those with the longest",
        *PROC,
        INTERVAL,
        *BY,
        i64("count", "waits"),
        i64("wait_ns", "time ready to run but not running, summed over its threads", "ns"),
        i64("max_ns", "the longest", "ns"),
        measure="wait_ns",
    ),
    table(
        "cpu_delay",
        "one wait of a thread for a processor, of a process that reports decisions: it ended at t_ns",
        *PROC,
        *BY,
        i64("duration_ns", "time ready to run but not running", "ns"),
        measure="duration_ns",
    ),
    table(
        "process_event",
        "a process was stopped, went on or ended; or a cgroup was frozen",
        *PROC,
        enum(
            "kind",
            "stopped continued killed exited oom_killed frozen thawed traced",
            "stopped, continued, killed: by a signal; exited: by itself; frozen, thawed: all of cgroup_id; traced: a"
            " debugger attaches, and may hold it",
        ),
        i64("signal", "the signal that did it; of one that exited, the last that asked it to"),
        i64("exit_code", "status of one that exited"),
        i64("sender_pid", "who sent the signal, or froze the cgroup; null: the kernel, or not known"),
        text("sender_comm", 16, "its command name"),
        i64("uid", "the process's real user, or who froze the cgroup"),
        i64("parent_pid", "the process that had started it, or took it over"),
        enum(
            "sender_is",
            "kernel itself parent ancestor terminal other asked",
            "what the sender is to the process; asked: who had asked it to end before killing it; parent: also what its"
            " parent started, and the first process of the host; terminal: at the same terminal",
        ),
        measure="signal",
    ),
)
