"""Every table, declared once.

The numpy dtype of a batch, the store's columns, the CLI's columns and the OTLP attributes all follow from this page; the
kernel's wire structs (bpf/events.h) are decoded into it by field name (agent/kernel/wire.py).

``t_ns`` is CLOCK_BOOTTIME of the host where the thing happened. The other COMMON columns (boot_id, host, wall_*) are not
stored per row: a segment knows its boot id and host, and wall time is derived late, through the offset history.
"""

from __future__ import annotations

from pathlib import Path

from agent.columns import Column, addr, boolean, enum, f64, hist, i64, json_text, peer, text
from agent.common.table import T_NS, Table, Tables

PROC = (
    i64("pid", "process (thread group) id in the host's pid namespace", "", "process.pid"),
    i64("tid", "thread id", "", "thread.id"),
    i64("proc_start_ns", "start of the process, CLOCK_BOOTTIME; identifies it together with pid", "ns"),
    text("comm", 16, "command name", "process.command"),
    i64("cgroup_id", "cgroup v2 id", "", "linux.cgroup.id"),
    text("container_id", 64, "container id, from the cgroup path", "container.id"),
)

SOCK = (
    i64("sock_id", "identity of the socket while it lives, unique within a boot"),
    i64("netns", "inode number of the network namespace"),
    enum("family", "ipv4 ipv6", "address family of the socket", "network.type"),
    addr("saddr", "local address", "network.local.address"),
    i64("sport", "local port", "", "network.local.port"),
    addr("daddr", "remote address", "network.peer.address"),
    i64("dport", "remote port", "", "network.peer.port"),
    enum("role", "client server", "which side opened the connection", "network.role"),
    peer("remote ip:port", "peer"),
)


def _table(name: str, meaning: str, *columns: Column, measure: str = "", latest_by: str = "") -> Table:
    return Table(name, meaning, (T_NS, *columns), measure, latest_by)


_INTERVAL = i64("interval_ns", "length of the interval that ends at t_ns", "ns")
_BASIS = enum("basis", "all sampled blocked", "all calls, calls in sampling windows, or only time blocked in calls")


#: Who had the processor meanwhile.
_BY = (
    i64("by_pid", "the process that ran instead; 0: nobody, the processor was idle"),
    i64("by_proc_start_ns", "its start, CLOCK_BOOTTIME", "ns"),
    text("by_comm", 16, "its command name"),
    i64("by_cgroup_id", "its cgroup v2 id"),
)


#: Of rows that are made while something is wrong only, and for seconds (agent/investigate/).
_LOOK = text("investigation", 16, "the closer look that it is of; empty: of none")


def _declared(room: str, later: str) -> str:
    """The names of what is declared there, a file each, and of what will be: they are taken already."""
    return " ".join(
        sorted(
            {path.stem for path in (Path(__file__).parent / "correlate" / room).glob("[a-z]*.py")} | set(later.split())
        )
    )


#: What a finding may say (agent/correlate/catalogue.py; here are names only, since the declarations need the tables). The counters of findings
#: start at 0 for each of them.
SYMPTOMS = _declared("symptoms", """handshake_latency redelivery rebalancing entries_lost
    duplicates""")  # fmt: skip
CAUSES = _declared("causes", "")  # fmt: skip

# fmt: off
_ALL = (
    _table("tcp_rtt", "smoothed round-trip time of a connection in an interval", *PROC, *SOCK, _INTERVAL,
           i64("samples", "RTT samples counted (gated per socket)"),
           i64("rtt_min_us", "smallest smoothed RTT", "us"), i64("rtt_max_us", "largest smoothed RTT", "us"),
           i64("rtt_sum_us", "sum over samples", "us"), i64("srtt_us", "last smoothed RTT", "us"),
           i64("raw_min_us", "shortest round trip of a single segment that was seen, not smoothed; the peer may have held back what acknowledged it", "us"),
           i64("raw_max_us", "and the longest", "us"),
           i64("segments", "segments with data that were sent"), i64("again", "segments sent again"),
           i64("doubled", "of these, as many as the peer said it had already (DSACK): they had not been lost"), hist("us"), measure="srtt_us"),
    _table("tcp_connect", "a connect that ended", *PROC, *SOCK,
           i64("duration_ns", "from SYN_SENT to the end of the connect", "ns"),
           enum("result", "ok failed aborted", "aborted: closed by the program before it was decided"),
           i64("errno", "positive errno of a failed connect", "", "error.type"), measure="duration_ns"),
    _table("tcp_retransmit", "a retransmitted segment, or an interval's count", *PROC, *SOCK,
           enum("kind", "data synack syn", "what was sent again"), text("state", 16, "TCP state then", "network.connection.state"),
           i64("count", "segments"), measure="count"),
    _table("tcp_reset", "a TCP reset", *PROC, *SOCK, enum("direction", "sent received", "who sent it", "network.io.direction")),
    _table("tcp_close", "the end of a connection", *PROC, *SOCK, i64("duration_ns", "from ESTABLISHED to CLOSE", "ns"),
           i64("bytes_in", "bytes received", "bytes"), i64("bytes_out", "bytes acknowledged by the peer", "bytes"),
           i64("retransmits", "segments sent again"), i64("srtt_us", "last smoothed RTT", "us"),
           i64("waited_ns", "where the program of the end that had connected closed it before anything came in answer to what it last sent: for how long it had waited, in the kernel's ticks; null where an answer had come, or the peer closed first", "ns"), measure="duration_ns"),
    _table("service_latency", "how long a process took to answer on connections that it had accepted on a port, in an interval: from the arrival of what it read to what it wrote next. In the kernel's ticks (4 ms where it has 250 a second); an answer is seen when the next request is read, or within a second", *PROC, *SOCK, _INTERVAL,
           i64("requests", "requests that were answered, at least; those of the first bucket were quicker than can be told"),
           i64("unanswered", "requests whose connection ended without an answer"),
           i64("waiting", "requests that wait for half a second or longer already, of those that were looked at; such a one may be the slowest"),
           i64("sum_ns", "total", "ns"), i64("held_ns", "of it, by those of 128 ms or longer, to a factor of two", "ns"), i64("max_ns", "the slowest; its connection's peer and the thread that read it are those of this row", "ns"),
           i64("max_from_ns", "when the slowest one's request had come, CLOCK_BOOTTIME", "ns"),
           i64("p50_ns", "what half of the requests took at most, to a factor of two; 0: quicker than can be told", "ns"), i64("p90_ns", "and nine in ten", "ns"), hist("ns"), measure="max_ns"),
    _table("tls_handshake", "a TLS handshake", *PROC, *SOCK, text("library", 16, "TLS library"),
           text("library_version", 32, "its version"), i64("duration_ns", "wall time from first call to the end", "ns"),
           i64("in_call_ns", "time inside calls", "ns"), i64("calls", "calls it took"),
           enum("result", "ok failed abandoned", "how it ended"), text("error", 64, "why it failed", "error.type"),
           i64("verify_result", "what checking the peer's certificate gave, X509_V_ERR number (0 good), whether or not the handshake passed; null: no certificate"),
           text("tls_version", 8, "negotiated version, for example 1.3", "tls.protocol.version"), measure="duration_ns"),
    _table("dns_lookup", "a name that was looked up; an answer, or a wait without one, where it was seen at a socket only", *PROC, peer("the name server that was asked last"),
           text("name", 128, "the name, bytes that are not ASCII's printable ones as \\027; too long: cut, with a hash of the whole; empty: not known", "dns.question.name"),
           text("qtype", 8, "the type that was asked for: A AAAA A+AAAA ..."), i64("duration_ns", "until it was known, or given up", "ns"),
           i64("tries", "questions until then, where they were seen: one each time that nobody answered, and the last"),
           enum("result", "ok nxdomain nodata servfail refused timeout error", "how it ended; nodata: the name has no such address"),
           i64("rcode", "of the last answer (RFC 1035 4.1.1), where it was seen"), i64("code", "what getaddrinfo returned, EAI_*"),
           enum("source", "getaddrinfo socket go", "how it was seen: the C library's call, an answer at a thread's own socket, or Go's own resolver"),
           i64("uid", "the process's real user"), measure="duration_ns"),
    _table("syscall_latency", "a process's use of one system call in an interval", *PROC,
           text("syscall", 24, "system call", "syscall.name"), i64("nr", "system call number", "", "syscall.nr"),
           _INTERVAL, _BASIS, f64("sample_rate", "share of the interval that was observed"),
           enum("kind", "slow waiting", "blocked basis: waiting for input or time, or held up"),
           peer("remote ip:port for waits on a socket"),
           i64("count", "calls, as seen"), i64("errors", "calls that returned an error"), i64("sum_ns", "total", "ns"),
           i64("max_ns", "longest", "ns"), i64("run_queue_ns", "blocked basis: runnable but not running", "ns"),
           hist("ns"), _LOOK, measure="max_ns"),
    _table("slow_syscall", "one slow system call, or a wait inside a decision", *PROC,
           enum("kind", "slow waiting", "held up, or waiting for input"), peer("remote ip:port where the fd is a socket"),
           text("syscall", 24, "system call", "syscall.name"), i64("nr", "system call number", "", "syscall.nr"),
           i64("fd", "file descriptor"), text("fd_type", 16, "what the fd is: file socket pipe eventfd ..."),
           i64("duration_ns", "the call's time (blocked basis: first block to last wake)", "ns"),
           i64("blocked_ns", "of it, asleep", "ns"), i64("run_queue_ns", "of it, runnable but not running", "ns"), _BASIS,
           i64("ret", "return value, where seen"), i64("goroutine", "Go's g address", "", "go.goroutine"),
           i64("sock_id", "the socket, where the fd is one"),
           i64("holder_pid", "of a flock or fcntl that waited for a lock: the process that held it"),
           text("holder_comm", 16, "its command name"), i64("holder_start_ns", "and when it started, CLOCK_BOOTTIME", "ns"),
           text("file", 32, "of a file or directory: the last part of its path"), text("device", 16, "and the disk that it is on: sda nvme0n1 dm-0"),
           i64("written_bytes", "what the thread wrote in this call and since the one before in which it waited", "bytes"),
           boolean("frozen", "the file system was frozen (FIFREEZE: for a snapshot) when the call began to wait"), measure="duration_ns"),
    _table("cpu_wait", "how long a process's threads were ready to run while another process ran, in an interval: waits of a millisecond or more, 64 pairs, of each user in turn those with the longest", *PROC,
           _INTERVAL, *_BY, i64("count", "waits"), i64("wait_ns", "time ready to run but not running, summed over its threads", "ns"), i64("max_ns", "the longest", "ns"),
           measure="wait_ns"),
    _table("cpu_delay", "one wait of a thread for a processor, of a process that reports decisions: it ended at t_ns", *PROC, *_BY,
           i64("duration_ns", "time ready to run but not running", "ns"), measure="duration_ns"),
    _table("process_event", "a process was stopped, went on or ended; or a cgroup was frozen", *PROC,
           enum("kind", "stopped continued killed exited oom_killed frozen thawed traced",
                "stopped, continued, killed: by a signal; exited: by itself; frozen, thawed: all of cgroup_id; traced: a debugger attaches, and may hold it"),
           i64("signal", "the signal that did it; of one that exited, the last that asked it to"), i64("exit_code", "status of one that exited"),
           i64("sender_pid", "who sent the signal, or froze the cgroup; null: the kernel, or not known"), text("sender_comm", 16, "its command name"),
           i64("uid", "the process's real user, or who froze the cgroup"), measure="signal"),
    _table("clock_change", "something that moved or tried to move a clock", *PROC,
           enum("kind", "step slew frequency leap tai suspend pause restore clocksource unsync", "what happened"),
           text("via", 16, "the call: clock_settime settimeofday adjtimex clock_adjtime, or none"),
           text("modes", 64, "adjtimex modes, decoded; status flags that changed (+UNSYNC -INS); the clocksources; time stolen in a pause; unwatched=S: found by an agent that started, S seconds after the last one looked"), i64("requested_ns", "what was asked: a target time for set calls, else an offset", "ns"),
           i64("size_ns", "how far REALTIME moved against MONOTONIC; of a suspend or a pause: how long", "ns"), i64("err_ns", "error bound of size_ns", "ns"),
           i64("real_mono_before_ns", "REALTIME - MONOTONIC before", "ns"), i64("real_mono_after_ns", "and after", "ns"),
           i64("freq_before_ppb", "frequency correction before", "ppb"), i64("freq_after_ppb", "and after", "ppb"),
           i64("ret", "return value; negative errno when it failed"),
           enum("direction", "forward backward", "which way REALTIME jumped; null where it did not", "direction"),
           i64("unwatched_ns", "for how long nobody had looked when it was found, by an agent that started; null too in rows that an earlier version sealed", "ns"), measure="size_ns"),
    _table("clock_offset", "a sample, or the start of a segment, of the offset history",
           i64("real_mono_ns", "REALTIME - MONOTONIC", "ns"), i64("boot_mono_ns", "BOOTTIME - MONOTONIC", "ns"),
           i64("mono_raw_ns", "MONOTONIC - MONOTONIC_RAW", "ns"), i64("tai_mono_ns", "TAI - MONOTONIC", "ns"),
           i64("err_ns", "error bound of these", "ns"), i64("freq_ppb", "adjtimex frequency", "ppb"),
           i64("tick_us", "adjtimex tick", "us"), i64("status", "adjtimex status bits"),
           i64("maxerror_us", "adjtimex maxerror", "us"), i64("tai_s", "TAI - UTC as the kernel knows it", "s"),
           boolean("cut", "true where a segment starts: an adjustment was seen at t_ns"),
           i64("ntp_offset_ns", "what adjtimex still has to slew away: the time daemon's last offset", "ns"), i64("esterror_us", "adjtimex esterror", "us"),
           i64("leap_indicator", "as in NTP: 0 none, 1 a second will be inserted, 2 one will be deleted, 3 not synchronised"),
           boolean("synchronised", "the kernel's clock is disciplined (not STA_UNSYNC)"), measure="real_mono_ns"),
    _table("clock_daemon", "what a time daemon, a time server, or a comparison of two of them says of the wall clock",
           text("daemon", 16, "who says it: chrony ntpd timesyncd sntp ..."),
           enum("kind", "system source check", "the daemon itself, one of its sources (or a server asked past it), a comparison"),
           enum("state", "synchronised unsynchronised silent refused error agree disagree selected combined excluded falseticker unstable unusable",
                "in what state it is; of a source, what the daemon makes of it"),
           text("source", 64, "the source or server; of a comparison, with what"),
           i64("offset_ns", "the source's time minus the wall clock (positive: our clock is slow); of a comparison, the difference", "ns"),
           i64("distance_ns", "bound of offset_ns: root distance, or the sum of both bounds", "ns"),
           i64("root_delay_ns", "round trip to the reference clock", "ns"), i64("root_dispersion_ns", "error added on the way from it", "ns"),
           i64("delay_ns", "round trip to the server", "ns"), i64("stratum", "hops to the reference clock"),
           enum("leap", "none insert delete unsynchronised", "leap second announced"), text("ref_id", 16, "reference id"),
           i64("last_update_ns", "last update or measurement, CLOCK_BOOTTIME", "ns"), i64("update_interval_ns", "between the last two updates", "ns"),
           i64("last_offset_ns", "offset at the last update, as offset_ns", "ns"), i64("rms_offset_ns", "its long-term average, or jitter", "ns"),
           i64("freq_ppb", "correction the oscillator is believed to need (positive: it is slow)", "ppb"),
           i64("residual_freq_ppb", "part of it still to come", "ppb"), i64("skew_ppb", "error bound of freq_ppb", "ppb"),
           i64("reach", "last eight polls, a bit each"), i64("poll_s", "polling interval", "s"),
           i64("real_raw_ns", "REALTIME - MONOTONIC_RAW at t_ns", "ns"), text("reason", 160, "why that state"), measure="offset_ns"),
    _table("notice_status", "the jump notices on one channel so far, at each change", enum("channel", "socket exec webhook redis", "the notice socket, or a hook"),
           i64("subscribers", "programs connected now"), i64("sent", "notices sent, one a subscriber; of a hook: delivered"),
           i64("acknowledged", "notices acknowledged: the limiter has re-anchored"), i64("pending", "sent to a subscriber now connected, not acknowledged yet"),
           i64("failed", "deliveries that failed"), i64("dropped", "subscribers dropped (slow, too many, noisy); of a hook: notices left out"),
           i64("malformed", "lines of subscribers that are no acknowledgement"), text("reason", 128, "the last failure"), measure="pending"),
    _table("limiter_decision", "one decision of a rate limiter", *PROC, text("limiter_id", 64, "which limiter: the program, what it is, and who asks it", "rate_limiting.limiter.id"),
           text("library", 48, "limiter library"), text("library_version", 24, "its version"),
           enum("source", "uprobe socket otlp redis", "how it was seen"), text("key", 64, "limited key, hashed or cut", "rate_limiting.key"),
           enum("result", "allowed refused delayed error cancelled", "the decision; cancelled: the caller gave up before it was let go", "rate_limiting.result"), f64("cost", "units asked for"),
           f64("limit_per_s", "configured rate; null where unknown, or unlimited", "1/s"), f64("burst", "configured burst"), i64("window_ns", "window of the limit", "ns"),
           f64("remaining", "units left"), i64("wait_ns", "delay imposed; a cancelled one did not last as long", "ns"),
           i64("duration_ns", "time that it took; it ended at t_ns. A call that waits ends when its wait does. Null where only its end was watched", "ns"),
           i64("program_wall_ns", "wall time that the program used", "ns"), boolean("step_immune", "the limiter's clock ignores steps"),
           i64("goroutine", "Go's g address", "", "go.goroutine"), text("trace_id", 32, "W3C trace id"), text("span_id", 16, "W3C span id"),
           f64("sample_rate", "share of decisions seen"), boolean("unlimited", "there is no limit: every decision is allowed"),
           i64("member", "which of those that one place asks: its address in the process; the same place may have one a customer"),
           i64("probe_ns", "what the probes added to duration_ns, as measured on this machine; it is taken off already", "ns"), measure="duration_ns"),
    _table("limiter", "where a limiter of a Go program is asked, when it was first seen, and each hour that it is in use", text("limiter_id", 64, "which limiter", "rate_limiting.limiter.id"),
           text("program", 48, "the program, as its build names it"), text("path", 128, "its file"), text("build_id", 48, "which build: Go's content id, else the GNU build id"),
           text("library", 48, "limiter library"), text("library_version", 24, "its version"), text("site", 160, "the first function outside the library that asks it"),
           text("file", 96, "its source file, the last two elements"), i64("line", "where it asks, in this build"), measure="line"),
    _table("limiter_rate", "a limiter that is watched a part of the time only, because it decides too often: what it decided in an interval", *PROC, text("limiter_id", 64, "which limiter; others: those of the process beyond the 64 that decide most", "rate_limiting.limiter.id"),
           text("library", 48, "limiter library"), text("library_version", 24, "its version"), _INTERVAL, i64("watched_ns", "of it, watched", "ns"),
           i64("seen_allowed", "decisions that were seen and let through, at once or after a delay; each is a row of limiter_decision"), i64("seen_refused", "and that were seen and not let through"),
           i64("allowed", "let through in the interval"), i64("allowed_low", "at least, 95 in 100 times"), i64("allowed_high", "at most, 95 in 100 times; null: the probes set the pace, so allowed is at least so many"),
           i64("refused", "not let through in the interval, as if watching it did not slow its callers"), i64("refused_low", "at least, 95 in 100 times"),
           i64("refused_high", "at most, 95 in 100 times, as if its callers had waited for the probes; null: the probes set the pace, so refused is at least so many"),
           enum("basis", "bucket windows bounds", "where allowed is from: the limiter's own bucket, exactly; what windows say of the time between them; or bounds that the bucket sets, which filled or was given something twice"),
           f64("pace", "how many times as often it may decide while it is not watched, if its callers wait for the answers; null: not known, the probes set the pace"), measure="refused"),
    _table("queue_lag", "one queue at one poll", text("system", 16, "messaging system", "messaging.system"),
           text("destination", 64, "stream, topic or queue", "messaging.destination.name"),
           text("partition", 16, "partition", "messaging.destination.partition.id"),
           text("consumer_group", 64, "consumer group", "messaging.consumer.group.name"), i64("lag_messages", "messages not yet delivered"),
           f64("lag_s", "age of the lag in time", "s"), boolean("exact", "lag_messages is exact"),
           text("inexact_reason", 64, "why not"), f64("oldest_undelivered_s", "age of the oldest undelivered message", "s"),
           f64("oldest_pending_s", "age of the oldest unacknowledged message", "s"), i64("pending", "delivered, not acknowledged"),
           i64("redelivered", "delivered more than once, of the 100 oldest pending"), i64("consumers", "consumers"), f64("in_per_s", "arrivals", "1/s"),
           f64("out_per_s", "acknowledgements", "1/s"), text("status", 16, "ok lagging stuck down"), text("reason", 128, "why that status"),
           enum("failure", "no_answer refused unreachable closed login other unasked", "how a poll failed; unasked: tickscope's own process for brokers was not there; null where it did not, and in rows that an earlier version sealed"),
           i64("poll_ns", "time the poll took", "ns"), peer("the server's ip:port"),
           text("holder", 64, "consumer that holds the oldest unacknowledged message"), text("idle_consumer", 64, "consumer that has asked for nothing, or got nothing (Redis before 7.2), for longest, of those that did within a minute"), f64("idle_s", "for how long", "s"),
           text("server_role", 16, "of the server: primary, replica, or cut off (a replica that does not reach its primary)"), f64("errors_per_s", "error replies of the server that refuse service to others (OOM, READONLY, LOADING, NOAUTH ...)", "1/s"),
           text("errors", 64, "their kinds and numbers since the poll before"), i64("memory_bytes", "memory that the server has used", "bytes"), i64("memory_limit_bytes", "as much as it may use", "bytes"),
           i64("clients", "clients of the server"), i64("clients_limit", "as many as it takes"), i64("clients_refused", "connections that it refused for that limit since it started"), measure="lag_messages"),
    _table("socket_queue", "one kernel queue at one poll: of up to 256 listeners, those with most waiting, and the 32 connections with most unread or unsent", *PROC, *SOCK, enum("kind", "accept connection qdisc", "which queue"),
           i64("queue", "length: connections, bytes or packets"), i64("limit", "its limit"), i64("overflows", "full accept queues met since the host started, by all listeners"),
           i64("recv_q_bytes", "receive queue", "bytes"), i64("send_q_bytes", "send queue", "bytes"), text("device", 16, "network device"),
           i64("acked_bytes", "connection: what the other end has taken since it began", "bytes"),
           i64("shut_ns", "connection: for how long in all what was written waited for the other end's window to open", "ns"),
           i64("drops", "connections (accept) or packets (qdisc) that this queue dropped"), measure="queue"),
    _table("resource", "what a watched process (one that reports decisions, or serves others) has of something at a poll: where that nears its end or is withheld, and now and then", *PROC,
           enum("kind", "cpu memory fd disk oom", "processor, memory, descriptors, a file system's room; oom: the kernel killed it for want of memory"),
           text("object", 128, "the cgroup that withholds it, or the file system; steal: the hypervisor of this host"), _INTERVAL,
           i64("used", "descriptors, or bytes; of a file system that is short of them, files"), i64("limit", "how many it may have; cpu: periods of the quota in the interval"),
           i64("events", "in the interval: periods in which a quota withheld the processor, charges beyond the memory's limit, processes killed"),
           i64("faults", "memory: pages that it had to read in the interval"), i64("waited_ns", "cpu: for how long it was withheld, summed over processors", "ns"),
           i64("uid", "the process's real user"), measure="used"),
    _table("cpu_use", "what a watched process ran of the processors in an interval, all its threads together; none where that is less than 20 ms", *PROC, _INTERVAL,
           i64("user_ns", "of its own code", "ns"), i64("system_ns", "in the kernel, for it", "ns"), measure="user_ns"),
    _table("investigation", "a closer look at a process, for seconds, while something is wrong with it or with whom it holds up: its latest state", text("investigation", 16, "its name, by which its rows are found: LOOK.NUMBER; the look's own rows, as of disks, have number 0"), *PROC,
           i64("uid", "the process's real user"), text("symptom", 24, "what was wrong", names=SYMPTOMS), text("finding_id", 32, "the finding that it became, where one is known by now", "tickscope.finding.id"),
           enum("state", "running done failed", "failed: nothing could be attached"), text("looked", 96, "what was attached: calls oncpu offcpu block contention reclaim synack"),
           i64("begun_ns", "when it began, CLOCK_BOOTTIME", "ns"), i64("interval_ns", "for how long", "ns"), i64("found", "rows that it made"),
           text("reason", 160, "what of it failed, and why"), measure="interval_ns", latest_by="investigation"),
    _table("off_cpu", "where threads of a process were while they did not run, during a closer look: time by stack, the longest first", *PROC, _LOOK, _INTERVAL,
           enum("state", "sleeping uninterruptible ready", "uninterruptible: for a disk or a lock of the kernel's, mostly; ready: kept waiting for a processor"),
           text("syscall", 24, "the system call that it was in; empty: none, as at a page fault", "syscall.name"), enum("kind", "slow waiting", "held up, or waiting for input, time or others, as in slow_syscall; a sleep outside of calls is slow"),
           i64("count", "times"), i64("sum_ns", "total, summed over threads; a thread that did not run in all the time counts, too", "ns"), i64("max_ns", "the longest", "ns"),
           text("kernel_stack", 512, "the kernel's functions, innermost first; the name of one alone where the thread slept from before the look to after it; a number where the name is not known"),
           text("user_stack", 768, "the program's functions, innermost first, as far as frame pointers lead; FILE+0xOFFSET where a file does not name them"), measure="sum_ns"),
    _table("on_cpu", "where threads of a process ran, during a closer look: time by thread and stack, the longest first", *PROC, _LOOK, _INTERVAL, text("syscall", 24, "the system call that it was in; empty: none, it ran its own code", "syscall.name"),
           i64("count", "times that it was looked at"), i64("sum_ns", "time on a processor", "ns"), text("user_stack", 768, "as in off_cpu; empty where it was not at hand"), measure="sum_ns"),
    _table("block_io", "requests of a process to a disk during a closer look; one row a disk for all together", *PROC, _LOOK, _INTERVAL, text("device", 16, "the disk: sda nvme0n1 dm-0"),
           enum("op", "read write flush discard other all", "all: the disk's own sum"), i64("count", "requests that were completed"), i64("unfinished", "that were not, at the end; their time so far counts"), i64("bytes", "of these", "bytes"), i64("errors", "that failed"),
           i64("sum_ns", "time that the device had them", "ns"), i64("max_ns", "for the slowest", "ns"), i64("queued_ns", "time that they waited before the device had them", "ns"),
           f64("in_flight", "requests with the device, on average"), hist("ns"), measure="max_ns"),
    _table("lock_contention", "waits for one lock of the kernel's own during a closer look, on one way through the kernel", *PROC, _LOOK, _INTERVAL,
           text("lock", 64, "its name where it has one, else the function that takes it"), text("address", 20, "where it is"), text("kind", 24, "spin mutex rtmutex percpu, read, write"),
           enum("path", "process handshake", "of the process; between a SYN's arrival and the SYN-ACK, in whichever process's time"), i64("count", "waits"),
           i64("sum_ns", "total", "ns"), i64("max_ns", "the longest", "ns"), text("kernel_stack", 512, "as in off_cpu"), measure="sum_ns"),
    _table("memory_stall", "time that a process's threads took to make room in memory, during a closer look", *PROC, _LOOK, _INTERVAL,
           enum("kind", "reclaim compaction", "of pages; for large pages"), i64("count", "times"), i64("sum_ns", "total", "ns"), i64("max_ns", "the longest", "ns"),
           i64("pages", "pages that were freed"), measure="sum_ns"),
    _table("syn_ack", "how long this host took from a SYN's arrival to its SYN-ACK, by local port, during a closer look", _LOOK, _INTERVAL, i64("netns", "inode number of the network namespace"),
           i64("sport", "local port", "", "network.local.port"), i64("count", "SYNs answered"), i64("sum_ns", "total", "ns"), i64("max_ns", "the longest", "ns"), hist("ns"), measure="max_ns"),
    _table("finding", "a finding, its latest state", text("finding_id", 32, "its id", "tickscope.finding.id"), enum("state", "open closed", "still going on?"),
           enum("severity", "notice alarm", "notice: a clock jump below the threshold (--jump-threshold) with no symptom after it"),
           i64("start_ns", "first seen, CLOCK_BOOTTIME", "ns"), i64("end_ns", "last seen, CLOCK_BOOTTIME", "ns"),
           text("symptom", 24, "what was wrong", names=SYMPTOMS), text("subject", 128, "with what"), text("cause", 24, "the first cause", names=CAUSES),
           text("cause_detail", 24, "the finer word of the first cause: of syscall the call, of cpu preempted, throttled or steal ..."),
           i64("culprit_pid", "the process that did it, where that is known"), text("culprit_comm", 16, "its command name"),
           text("culprit_object", 128, "what did it, where that is no process, or not only: a server's ip:port, a consumer, a device, a cgroup"),
           f64("confidence", "0 to 1"), text("sentence", 480, "the finding in words, times in UTC; boot+SECONDS where nothing was known of the wall clock yet, and in files of earlier versions"),
           json_text("said", 1024, "the same in pieces: texts, instants (CLOCK_BOOTTIME ns) and values ([value, unit]), which whoever shows it puts into words, by the clock of who reads it"), json_text("causes", 2048, "ranked causes"),
           json_text("evidence", 6144, "what speaks for it"), json_text("ruled_out", 2048, "what was looked at and does not explain it"),
           measure="confidence", latest_by="finding_id"),
    _table("evidence", "a piece of evidence of a finding, its latest state", text("finding_id", 32, "of which finding", "tickscope.finding.id"),
           text("evidence_id", 16, "its id"), enum("role", "for against timeline withdrawn", "what speaks for a cause, or against it, or what happened when; withdrawn: no longer so"),
           text("cause", 24, "the cause that it speaks for or against; of a time line, empty where it is the symptom", names=CAUSES),
           text("table", 24, "the table that it was seen in (a word of SQL: quote it there)"), text("column", 24, "the column (quote it, too); empty where rows were counted"),
           text("what", 48, "what the value is"), f64("value", "in its unit"), text("unit", 16, "of value and baseline"), f64("baseline", "what was usual"),
           i64("start_ns", "when, or from when, CLOCK_BOOTTIME", "ns"), i64("end_ns", "until when, CLOCK_BOOTTIME", "ns"),
           i64("pid", "of which process", "", "process.pid"), text("object", 128, "of which limiter, queue, peer or process"),
           measure="value", latest_by="evidence_id"),
    _table("loss", "records lost", enum("stage", "kernel ring intake store export", "where"), text("source", 32, "of what"),
           i64("count", "records; null where it cannot be known"), i64("from_ns", "not before, CLOCK_BOOTTIME", "ns"),
           i64("to_ns", "not after, CLOCK_BOOTTIME", "ns"), measure="count"),
    _table("probe_status", "a probe's state", text("probe", 32, "family or program"), enum("state", "attached degraded unavailable off", "its state"),
           text("reason", 256, "why"), text("remedy", 160, "what to do"), i64("hits", "times it ran"), i64("run_ns", "time it ran", "ns"), measure="hits"),
)
# fmt: on

TABLES = Tables(_ALL)
