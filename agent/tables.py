"""Every table, declared once.

The numpy dtype of a batch, the store's columns, the CLI's columns and the OTLP attributes all follow from this page; the
kernel's wire structs (bpf/events.h) are decoded into it by field name (agent/kernel/wire.py).

``t_ns`` is CLOCK_BOOTTIME of the host where the thing happened. The other COMMON columns (boot_id, host, wall_*) are not
stored per row: a segment knows its boot id and host, and wall time is derived late, through the offset history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from agent.columns import Column, addr, boolean, enum, f64, hist, i64, json_text, peer, text

T_NS = i64("t_ns", "when it happened, CLOCK_BOOTTIME", "ns")

#: Columns that exist in every query result but are derived, never stored per row.
DERIVED = (
    text("boot_id", 36, "the boot whose CLOCK_BOOTTIME t_ns counts", "host.boot.id"),
    i64("wall_ns", "wall time (CLOCK_REALTIME) as Unix time, through the offset history", "ns"),
    i64("wall_err_ns", "error bound of wall_ns", "ns"),
    enum("wall_state", "exact ambiguous skipped extrapolated", "ambiguous: that wall time occurred twice, around a backward step; extrapolated: nobody watched the clock then, so a step may be missing"),
    i64("wall_alt_ns", "the wall time under the offset on the step's other side, where ambiguous", "ns"),
    text("host", 64, "host name", "host.name"),
)

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


@dataclass(frozen=True)
class Table:
    """A table: its name, one line of meaning, its columns, and the column that `--group-by` and `--top` measure.

    latest_by: where set, rows of one boot that are equal in that column are one thing's states, and queries show the latest.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    measure: str = ""
    latest_by: str = ""

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The packed structured dtype of a batch."""
        return np.dtype([(c.name, c.dtype) for c in self.columns])

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}

    def empty(self, n: int) -> np.ndarray:
        """n rows with every value unknown; shape (n,), dtype ``self.dtype``."""
        rows = np.zeros(n, self.dtype)
        for c in self.columns:
            if c.kind in ("i64", "f64", "bool", "enum"):
                rows[c.name] = c.null
        return rows

    def code(self, column: str, name: str) -> int:
        """The stored code of an enum value, for example ``code("result", "refused")``."""
        return self.by_name[column].code(name)


def _table(name: str, meaning: str, *columns: Column, measure: str = "", latest_by: str = "") -> Table:
    return Table(name, meaning, (T_NS, *columns), measure, latest_by)


class Tables(Mapping[str, Table]):
    """Tables by name. More can be added until they are frozen: from then on everybody may keep what follows from them."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._tables: dict[str, Table] = {}
        self._frozen = False
        for one in tables:
            self.add(one)

    def add(self, one: Table) -> None:
        """Adding the same table again changes nothing. Raises ValueError for one that cannot be, RuntimeError after ``freeze``."""
        if self._tables.get(one.name) == one:
            return
        if self._frozen:
            raise RuntimeError(f"table {one.name}: tables are added before the start")
        if one.name in self._tables:
            raise ValueError(f"table {one.name}: there is another one of that name")
        names = [column.name for column in one.columns]
        wrong = next((name for name in (one.name, *names) if not re.fullmatch(r"[a-z][a-z0-9_]*", name)), None)
        if wrong is not None:
            raise ValueError(f"table {one.name}: {wrong!r} is no name (small letters, digits, underscores)")
        if names[:1] != ["t_ns"]:
            raise ValueError(f"table {one.name}: its first column is t_ns")
        twice = next((name for name in names if (names + [c.name for c in DERIVED]).count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"table {one.name}: there is another column {twice}")
        if unknown := {one.measure, one.latest_by} - {"", *names}:
            raise ValueError(f"table {one.name}: there is no column {unknown.pop()}")
        self._tables[one.name] = one

    def freeze(self) -> None:
        """At the agent's start, before it makes anything of them."""
        self._frozen = True

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


_INTERVAL = i64("interval_ns", "length of the interval that ends at t_ns", "ns")
_BASIS = enum("basis", "all sampled blocked", "all calls, calls in sampling windows, or only time blocked in calls")



def _declared(room: str, later: str) -> str:
    """The names of what is declared there, a file each, and of what will be: they are taken already."""
    return " ".join(sorted({path.stem for path in (Path(__file__).parent / "correlate" / room).glob("[a-z]*.py")} | set(later.split())))


#: What a finding may say (agent/correlate/catalogue.py; here are names only, since the declarations need the tables). The counters of findings
#: start at 0 for each of them.
SYMPTOMS = _declared("symptoms", """silence process_stopped process_gone receiver_stalled sender_stalled handshake_latency handshake_failures
    connect_latency connect_failures network_rtt network_loss service_latency service_errors blocked_time redelivery rebalancing entries_lost
    duplicates resource_low""")  # fmt: skip
CAUSES = _declared("causes", """dns disk memory peer_stopped failover process_stopped process_killed process_restarted resource_limit
    retry_storm""")  # fmt: skip

_ALL = (
    _table("tcp_rtt", "smoothed round-trip time of a connection in an interval", *PROC, *SOCK, _INTERVAL,
           i64("samples", "RTT samples counted (gated per socket)"),
           i64("rtt_min_us", "smallest smoothed RTT", "us"), i64("rtt_max_us", "largest smoothed RTT", "us"),
           i64("rtt_sum_us", "sum over samples", "us"), i64("srtt_us", "last smoothed RTT", "us"), hist("us"), measure="srtt_us"),
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
           i64("retransmits", "segments sent again"), i64("srtt_us", "last smoothed RTT", "us"), measure="duration_ns"),
    _table("tls_handshake", "a TLS handshake", *PROC, *SOCK, text("library", 16, "TLS library"),
           text("library_version", 32, "its version"), i64("duration_ns", "wall time from first call to the end", "ns"),
           i64("in_call_ns", "time inside calls", "ns"), i64("calls", "calls it took"),
           enum("result", "ok failed abandoned", "how it ended"), text("error", 64, "why it failed", "error.type"),
           i64("verify_result", "what checking the peer's certificate gave, X509_V_ERR number (0 good), whether or not the handshake passed; null: no certificate"),
           text("tls_version", 8, "negotiated version, for example 1.3", "tls.protocol.version"), measure="duration_ns"),
    _table("syscall_latency", "a process's use of one system call in an interval", *PROC,
           text("syscall", 24, "system call", "syscall.name"), i64("nr", "system call number", "", "syscall.nr"),
           _INTERVAL, _BASIS, f64("sample_rate", "share of the interval that was observed"),
           enum("kind", "slow waiting", "blocked basis: waiting for input or time, or held up"),
           peer("remote ip:port for waits on a socket"),
           i64("count", "calls, as seen"), i64("errors", "calls that returned an error"), i64("sum_ns", "total", "ns"),
           i64("max_ns", "longest", "ns"), i64("run_queue_ns", "blocked basis: runnable but not running", "ns"),
           hist("ns"), measure="max_ns"),
    _table("slow_syscall", "one slow system call, or a wait inside a decision", *PROC,
           enum("kind", "slow waiting", "held up, or waiting for input"), peer("remote ip:port where the fd is a socket"),
           text("syscall", 24, "system call", "syscall.name"), i64("nr", "system call number", "", "syscall.nr"),
           i64("fd", "file descriptor"), text("fd_type", 16, "what the fd is: file socket pipe eventfd ..."),
           i64("duration_ns", "the call's time (blocked basis: first block to last wake)", "ns"),
           i64("blocked_ns", "of it, asleep", "ns"), i64("run_queue_ns", "of it, runnable but not running", "ns"), _BASIS,
           i64("ret", "return value, where seen"), i64("goroutine", "Go's g address", "", "go.goroutine"),
           i64("sock_id", "the socket, where the fd is one"), measure="duration_ns"),
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
    _table("limiter_decision", "one decision of a rate limiter", *PROC, text("limiter_id", 48, "which limiter", "rate_limiting.limiter.id"),
           text("library", 48, "limiter library"), text("library_version", 24, "its version"),
           enum("source", "uprobe socket otlp redis", "how it was seen"), text("key", 64, "limited key, hashed or cut", "rate_limiting.key"),
           enum("result", "allowed refused delayed error cancelled", "the decision; cancelled: the caller gave up before it was let go", "rate_limiting.result"), f64("cost", "units asked for"),
           f64("limit_per_s", "configured rate; null where unknown, or unlimited", "1/s"), f64("burst", "configured burst"), i64("window_ns", "window of the limit", "ns"),
           f64("remaining", "units left"), i64("wait_ns", "delay imposed; a cancelled one did not last as long", "ns"),
           i64("duration_ns", "time that it took; it ended at t_ns. A call that waits ends when its wait does", "ns"),
           i64("program_wall_ns", "wall time that the program used", "ns"), boolean("step_immune", "the limiter's clock ignores steps"),
           i64("goroutine", "Go's g address", "", "go.goroutine"), text("trace_id", 32, "W3C trace id"), text("span_id", 16, "W3C span id"),
           f64("sample_rate", "share of decisions seen"), boolean("unlimited", "there is no limit: every decision is allowed"), measure="duration_ns"),
    _table("queue_lag", "one queue at one poll", text("system", 16, "messaging system", "messaging.system"),
           text("destination", 64, "stream, topic or queue", "messaging.destination.name"),
           text("partition", 16, "partition", "messaging.destination.partition.id"),
           text("consumer_group", 64, "consumer group", "messaging.consumer.group.name"), i64("lag_messages", "messages not yet delivered"),
           f64("lag_s", "age of the lag in time", "s"), boolean("exact", "lag_messages is exact"),
           text("inexact_reason", 64, "why not"), f64("oldest_undelivered_s", "age of the oldest undelivered message", "s"),
           f64("oldest_pending_s", "age of the oldest unacknowledged message", "s"), i64("pending", "delivered, not acknowledged"),
           i64("redelivered", "delivered more than once, of the 100 oldest pending"), i64("consumers", "consumers"), f64("in_per_s", "arrivals", "1/s"),
           f64("out_per_s", "acknowledgements", "1/s"), text("status", 16, "ok lagging stuck down"), text("reason", 128, "why that status"),
           enum("failure", "no_answer refused unreachable closed login other", "how a poll failed; null where it did not, and in rows that an earlier version sealed"),
           i64("poll_ns", "time the poll took", "ns"), peer("the server's ip:port"), measure="lag_messages"),
    _table("socket_queue", "one kernel queue at one poll: of up to 256 listeners, those with most waiting, and the 32 connections with most unread or unsent", *PROC, *SOCK, enum("kind", "accept connection qdisc", "which queue"),
           i64("queue", "length: connections, bytes or packets"), i64("limit", "its limit"), i64("overflows", "full accept queues met since the host started, by all listeners"),
           i64("recv_q_bytes", "receive queue", "bytes"), i64("send_q_bytes", "send queue", "bytes"), text("device", 16, "network device"),
           i64("drops", "connections (accept) or packets (qdisc) that this queue dropped"), measure="queue"),
    _table("finding", "a finding, its latest state", text("finding_id", 32, "its id", "tickscope.finding.id"), enum("state", "open closed", "still going on?"),
           enum("severity", "notice alarm", "notice: a clock jump below the threshold (--jump-threshold) with no symptom after it"),
           i64("start_ns", "first seen, CLOCK_BOOTTIME", "ns"), i64("end_ns", "last seen, CLOCK_BOOTTIME", "ns"),
           text("symptom", 24, "what was wrong", names=SYMPTOMS), text("subject", 128, "with what"), text("cause", 24, "the first cause", names=CAUSES),
           f64("confidence", "0 to 1"), text("sentence", 480, "the finding in words"),
           json_text("said", 1024, "the same in pieces: texts, and between them instants as CLOCK_BOOTTIME ns, so that who shows it tells them by the clock of who reads it"), json_text("causes", 2048, "ranked causes"),
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

TABLES = Tables(_ALL)
