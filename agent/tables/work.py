"""What processes do: system calls, waits for a processor, ends."""

from __future__ import annotations

from agent.columns import boolean, enum, f64, hist, i64, peer, text
from agent.tables.shared import BASIS, BY, INTERVAL, INVESTIGATION, PROC, table

DECLARED = (
    table(
        "syscall_latency",
        "the calls of one system call by one process in an interval",
        *PROC,
        text("syscall", 24, "system call", "syscall.name"),
        i64("nr", "system call number", "", "syscall.nr"),
        INTERVAL,
        BASIS,
        f64("sample_rate", "share of the interval that was observed"),
        enum(
            "kind",
            "slow waiting",
            "with basis blocked: waiting (for input or a timer), or slow (blocked by something else)",
        ),
        peer("remote ip:port of a wait on a socket"),
        i64("count", "observed calls, not scaled"),
        i64("errors", "calls that returned an error"),
        i64("sum_ns", "total duration", "ns"),
        i64("max_ns", "longest duration", "ns"),
        i64("run_queue_ns", "with basis blocked: time runnable but not running", "ns"),
        hist("ns"),
        INVESTIGATION,
        measure="max_ns",
    ),
    table(
        "slow_syscall",
        "one slow system call, a wait inside a decision, or a long wait of a process that answers late. A call that"
        " goes on has more rows, each when it is a tenth longer: basis so_far",
        *PROC,
        enum("kind", "slow waiting", "slow: blocked, but not on input; waiting: blocked on input"),
        peer("remote ip:port where the fd is a socket"),
        text("syscall", 24, "system call, or page_fault", "syscall.name"),
        i64("nr", "system call number", "", "syscall.nr"),
        i64("fd", "file descriptor"),
        text("fd_type", 16, "what the fd is: file socket pipe eventfd ...; fuse: a FUSE daemon ended the wait"),
        i64("duration_ns", "duration of the call (basis blocked: from the first block to the last wake-up)", "ns"),
        i64("blocked_ns", "part of duration_ns: asleep", "ns"),
        i64("run_queue_ns", "part of duration_ns: runnable but not running", "ns"),
        enum(
            "basis",
            "all sampled blocked so_far",
            "all calls, calls in sampling windows, or only time blocked in calls; so_far: a call that goes on, as of"
            " t_ns, of a process with an active symptom or that owes an answer",
        ),
        i64("ret", "return value, if seen"),
        i64("goroutine", "Go's g address", "", "go.goroutine"),
        i64("sock_id", "the socket, if the fd is a socket"),
        i64(
            "holder_pid",
            "flock and fcntl: the process that held the lock; a sleep: the lock that was refused before it",
        ),
        text("holder_comm", 16, "command name of that process"),
        i64("holder_start_ns", "start of that process, CLOCK_BOOTTIME", "ns"),
        i64("waker_pid", "the process whose own call ended the wait; none: an interrupt did"),
        text("waker_comm", 16, "command name of that process"),
        i64("waker_tid", "thread of it that did"),
        i64(
            "waker_awake_ns",
            "how long before that the thread's last wait of 50 ms had ended, or the thread begun",
            "ns",
        ),
        i64("waker_cpu_ns", "CPU time of that thread since then", "ns"),
        text("file", 32, "file or directory, or the file of a refused lock: last component of its path"),
        text("device", 16, "file or directory: the disk that holds it (sda nvme0n1 dm-0)"),
        i64("written_bytes", "bytes that the thread wrote in this call and since its previous blocked call", "bytes"),
        boolean(
            "frozen", "whether the file system was frozen (FIFREEZE, as for a snapshot) when the call began to wait"
        ),
        measure="duration_ns",
    ),
    table(
        "cpu_wait",
        "the time in an interval that the threads of one process were ready to run while another"
        " process ran. Only waits of 1 ms or longer; at most 64 pairs of processes per interval: the longest waits,"
        " taken from each user in turn",
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
        "one wait for a CPU by a thread of a process that makes limiter decisions; the wait ended at t_ns",
        *PROC,
        *BY,
        i64("duration_ns", "time ready to run but not running", "ns"),
        measure="duration_ns",
    ),
    table(
        "process_event",
        "a stop, continuation or end of a process, or a freeze of a cgroup",
        *PROC,
        enum(
            "kind",
            "stopped continued killed exited oom_killed frozen thawed traced",
            "stopped, continued, killed: by a signal; exited: by exit(); frozen, thawed: all processes of"
            " cgroup_id; traced: a debugger attached and may stop the process",
        ),
        i64(
            "signal",
            "the signal; exited: the last termination signal that the process got; null for a stop: before the agent"
            " ran",
        ),
        i64("exit_code", "exit status"),
        i64("sender_pid", "process that sent the signal or froze the cgroup; null: the kernel, or not known"),
        text("sender_comm", 16, "command name of that process"),
        i64("uid", "real user id of the process; frozen: of the user who froze the cgroup"),
        i64("parent_pid", "parent process"),
        enum(
            "sender_is",
            "kernel itself parent ancestor terminal other asked",
            "relation of the sender to the process. asked: the sender had sent a termination signal"
            " before SIGKILL; parent: the parent, a sibling, or pid 1; terminal: a process of the same terminal",
        ),
        measure="signal",
    ),
)
