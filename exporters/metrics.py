"""Every metric, declared once: OTLP, the Prometheus endpoint and the dashboards' checks all follow from this page.

Names are ``tickscope.*``: the OpenTelemetry semantic conventions have none for round-trip times, handshakes, system calls,
clocks, rate limiters or queue lag (``messaging.consumer.lag`` is only proposed, semantic-conventions#792). What every NTP client
knows is ``ntp.*``. Attributes take the convention's name from ``Column.attribute`` where there is one. One name may be made of several
tables: then there is an entry for each, told apart by attributes.

Histograms are the kernel's log2 buckets: an OTLP exponential histogram of scale 0. OTLP's bucket i holds (2^i, 2^(i+1)] and
ours [2^i, 2^(i+1)), so a value that is exactly a power of two is counted one bucket higher than OTLP would; bucket 0 also
holds zeros, which OTLP keeps apart (``zero_count``). Both are below the buckets' own resolution. Units are therefore the
kernel's (ns, us): in seconds the boundaries would not be powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.tables import TABLES

#: Series a metric may have before new ones are folded into one marked ``otel.metric.overflow`` (the SDK's own default), or left
#: out and counted where their sum would mean nothing (``Metric.additive``).
MAX_SERIES = 2000


@dataclass(frozen=True)
class Metric:
    """One metric.

    instrument: ``counter`` (monotonic sum), ``gauge`` (last value) or ``histogram``.
    unit: UCUM, as OTLP wants it.
    table: the table whose rows it is made of.
    columns: the columns that become attributes (the series' identity).
    value: the column that is added, shown or (for single events) counted in a bucket; "" counts rows.
    hist: for rows that are histograms themselves, their sum, min and max columns; "" where the row has none.
    where: (column, names): only rows whose enum has one of these names.
    absolute: a counter whose rows hold a running total, not increments.
    distinct: a column: rows whose value has been counted before are not counted again.
    client_only: a column that is left out unless this host opened the connection: a server's peers are unbounded.
    drift: a gauge that is the slope of ``value`` over ``t_ns``, in parts per 10^9, not its value.
    scale: what a gauge's value is multiplied by. magnitude: a histogram of absolute values.
    labels: attributes that every series of this table has.
    """

    name: str
    unit: str
    instrument: str
    description: str
    table: str
    columns: tuple[str, ...] = ()
    value: str = ""
    hist: tuple[str, str, str] | None = None
    where: tuple[str, tuple[str, ...]] | None = None
    absolute: bool = False
    distinct: str = ""
    client_only: str = ""
    drift: bool = False
    scale: float = 1
    magnitude: bool = False
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, by the OpenTelemetry compatibility rules, so that both ways end in the same series."""
        words = {"ns": "nanoseconds", "us": "microseconds", "s": "seconds", "By": "bytes", "1": ""}
        unit = "" if self.unit.startswith("{") else words.get(self.unit, self.unit)
        base = self.name.replace(".", "_")
        if unit and not base.endswith(f"_{unit}"):
            base += f"_{unit}"
        return f"{base}_total" if self.instrument == "counter" else base

    @property
    def integral(self) -> bool:
        """Whether its values are whole numbers, always."""
        return not self.drift and self.scale == 1 and (not self.value or TABLES[self.table].by_name[self.value].kind in ("i64", "bool"))

    @property
    def additive(self) -> bool:
        """Whether rows of several series may share one: neither last values nor running totals may."""
        return self.instrument != "gauge" and not self.absolute

    def attribute(self, column: str) -> str:
        """The exported attribute name of one of ``columns``."""
        return TABLES[self.table].by_name[column].attribute or f"tickscope.{column}"


_QUEUE = ("system", "destination", "partition", "consumer_group")
_CALL = ("comm", "syscall", "basis", "kind")
_LIMITER = ("comm", "limiter_id", "library", "source", "result")
_SOCKETS = ("comm", "kind", "saddr", "sport", "device")
_JUMPED = ("direction", ("forward", "backward"))
_NOT_CONNECTIONS = ("kind", ("accept", "qdisc"))

METRICS: tuple[Metric, ...] = (
    Metric("tickscope.tcp.rtt", "us", "histogram", "Smoothed round-trip time samples of TCP connections.", "tcp_rtt",
           ("comm", "role", "daddr"), "hist", ("rtt_sum_us", "rtt_min_us", "rtt_max_us"), client_only="daddr"),
    Metric("tickscope.tcp.connect.duration", "ns", "histogram", "From SYN_SENT to the end of the connect.", "tcp_connect",
           ("comm", "daddr", "result"), "duration_ns"),
    Metric("tickscope.tcp.retransmits", "{segment}", "counter", "TCP segments sent again.", "tcp_retransmit", ("comm", "kind"), "count"),
    Metric("tickscope.tcp.resets", "{reset}", "counter", "TCP resets sent and received.", "tcp_reset", ("comm", "direction")),
    Metric("tickscope.tls.handshake.duration", "ns", "histogram", "Wall time of TLS handshakes.", "tls_handshake",
           ("comm", "role", "library", "tls_version", "result"), "duration_ns"),
    Metric("tickscope.syscall.duration", "ns", "histogram",
           "System call time as seen: all calls, those in sampling windows (not scaled), or only the time blocked.", "syscall_latency",
           _CALL, "hist", ("sum_ns", "", "max_ns")),
    Metric("tickscope.syscall.errors", "{call}", "counter", "System calls that returned an error, as seen.", "syscall_latency", _CALL, "errors"),
    Metric("tickscope.syscall.run_queue", "ns", "counter", "Time runnable but not running inside blocked calls.", "syscall_latency",
           _CALL, "run_queue_ns"),
    Metric("tickscope.syscall.slow", "{call}", "counter", "Slow system calls.", "slow_syscall", ("comm", "syscall", "fd_type", "kind")),
    Metric("tickscope.clock.changes", "{change}", "counter", "Changes of the system's clocks.", "clock_change", ("comm", "kind", "via")),
    Metric("tickscope.clock.offset", "ns", "gauge", "CLOCK_REALTIME minus CLOCK_MONOTONIC.", "clock_offset", (), "real_mono_ns"),
    Metric("tickscope.clock.offset.error", "ns", "gauge", "Error bound of the clock offsets.", "clock_offset", (), "err_ns"),
    Metric("tickscope.clock.drift", "{ppb}", "gauge", "Rate of CLOCK_MONOTONIC against CLOCK_MONOTONIC_RAW.", "clock_offset", (),
           "mono_raw_ns", drift=True),
    Metric("tickscope.clock.frequency", "{ppb}", "gauge", "The kernel's frequency correction (adjtimex).", "clock_offset", (), "freq_ppb"),
    Metric("tickscope.clock.max_error", "us", "gauge", "The kernel's own error bound (adjtimex maxerror).", "clock_offset", (), "maxerror_us"),
    Metric("tickscope.clock.tai_offset", "s", "gauge", "TAI minus UTC as the kernel knows it.", "clock_offset", (), "tai_s"),
    Metric("tickscope.clock.est_error", "us", "gauge", "The kernel's estimated error (adjtimex esterror).", "clock_offset", (), "esterror_us"),
    Metric("tickscope.clock.tick", "us", "gauge", "The kernel's tick (adjtimex), 10,000 where nobody slews by it.", "clock_offset", (), "tick_us"),
    Metric("tickscope.clock.status", "1", "gauge", "The kernel's status bits (adjtimex).", "clock_offset", (), "status"),
    Metric("ntp.offset", "s", "gauge", "What the wall clock is believed to be behind: what the kernel has still to slew away, and what daemons say.",
           "clock_offset", (), "ntp_offset_ns", scale=1e-9, labels=(("tickscope.daemon", "kernel"),)),
    Metric("ntp.offset", "s", "gauge", "What the wall clock is believed to be behind: what the kernel has still to slew away, and what daemons say.",
           "clock_daemon", ("daemon",), "offset_ns", where=("kind", ("system",)), scale=1e-9),
    Metric("ntp.source.offset", "s", "gauge", "What the wall clock is behind a time source, as a daemon or our own query measured it.",
           "clock_daemon", ("daemon", "source"), "offset_ns", where=("kind", ("source",)), scale=1e-9),
    *(Metric(name, unit, "gauge", text, "clock_daemon", ("daemon",), column, where=("kind", ("system",)), scale=scale) for name, unit, text, column, scale in (
        ("ntp.root_distance", "s", "Bound of ntp.offset, as the daemon has it: root distance.", "distance_ns", 1e-9),
        ("ntp.root_delay", "s", "Round trip to the reference clock.", "root_delay_ns", 1e-9),
        ("ntp.root_dispersion", "s", "Error added on the way from the reference clock.", "root_dispersion_ns", 1e-9),
        ("ntp.stratum", "1", "Hops to the reference clock.", "stratum", 1),
        ("ntp.frequency", "{ppb}", "Correction that the oscillator is believed to need.", "freq_ppb", 1),
        ("ntp.skew", "{ppb}", "Error bound of ntp.frequency.", "skew_ppb", 1),
    )),
    Metric("ntp.source.reach", "1", "gauge", "The last eight polls of a time source, a bit each.", "clock_daemon", ("daemon", "source"), "reach",
           where=("kind", ("source",))),
    Metric("ntp.leap_indicator", "1", "gauge", "0 none, 1 a second will be inserted, 2 one will be deleted, 3 not synchronised.", "clock_offset", (),
           "leap_indicator"),
    Metric("ntp.sync_status", "1", "gauge", "1 where the kernel's clock is disciplined, else 0.", "clock_offset", (), "synchronised"),
    Metric("ntp.jump.count", "{jump}", "counter", "Jumps of the wall clock: steps and leap seconds.", "clock_change", ("direction",), where=_JUMPED),
    Metric("ntp.jump.size", "ns", "histogram", "Sizes of the wall clock's jumps.", "clock_change", ("direction",), "size_ns", where=_JUMPED,
           magnitude=True),
    Metric("tickscope.clock.notices", "{notice}", "counter", "Jump notices sent, one a subscriber.", "notice_status", ("channel",), "sent", absolute=True),
    Metric("tickscope.clock.notices.acknowledged", "{notice}", "counter", "Jump notices acknowledged: the limiter has re-anchored.", "notice_status",
           ("channel",), "acknowledged", absolute=True),
    Metric("tickscope.clock.notices.dropped", "{item}", "counter", "Subscribers dropped, or notices that a slow hook left out.", "notice_status",
           ("channel",), "dropped", absolute=True),
    Metric("tickscope.clock.notices.failed", "{notice}", "counter", "Deliveries of a hook that failed.", "notice_status", ("channel",), "failed",
           absolute=True),
    Metric("tickscope.clock.pending_reanchorings", "{notice}", "gauge", "Jump notices sent and not yet acknowledged by programs now connected.",
           "notice_status", (), "pending"),
    Metric("tickscope.clock.subscribers", "{subscriber}", "gauge", "Programs connected to the notice socket.", "notice_status", (), "subscribers"),
    Metric("tickscope.limiter.decisions", "{decision}", "counter", "Decisions of rate limiters, as seen.", "limiter_decision", _LIMITER),
    Metric("tickscope.limiter.decision.duration", "ns", "histogram", "Time that a decision itself took.", "limiter_decision",
           _LIMITER, "duration_ns"),
    Metric("tickscope.limiter.wait", "ns", "histogram", "Delay imposed by a decision.", "limiter_decision", _LIMITER, "wait_ns"),
    Metric("tickscope.queue.lag", "{message}", "gauge", "Messages not yet delivered.", "queue_lag", _QUEUE, "lag_messages"),
    Metric("tickscope.queue.lag.age", "s", "gauge", "Age of the lag in time.", "queue_lag", _QUEUE, "lag_s"),
    Metric("tickscope.queue.oldest_undelivered", "s", "gauge", "Age of the oldest undelivered message.", "queue_lag", _QUEUE, "oldest_undelivered_s"),
    Metric("tickscope.queue.oldest_pending", "s", "gauge", "Age of the oldest unacknowledged message.", "queue_lag", _QUEUE, "oldest_pending_s"),
    Metric("tickscope.queue.pending", "{message}", "gauge", "Messages delivered and not acknowledged.", "queue_lag", _QUEUE, "pending"),
    Metric("tickscope.queue.consumers", "{consumer}", "gauge", "Consumers of the queue.", "queue_lag", _QUEUE, "consumers"),
    Metric("tickscope.socket.queue", "{item}", "gauge", "Length of a listening socket's accept queue or of a network device's queue.",
           "socket_queue", _SOCKETS, "queue", where=_NOT_CONNECTIONS),
    Metric("tickscope.socket.queue.limit", "{item}", "gauge", "Limit of that queue.", "socket_queue", _SOCKETS, "limit", where=_NOT_CONNECTIONS),
    Metric("tickscope.socket.queue.drops", "{packet}", "counter", "Packets that a network device's queue dropped.", "socket_queue",
           ("device",), "drops", where=("kind", ("qdisc",)), absolute=True),
    Metric("tickscope.findings", "{finding}", "counter", "Findings made.", "finding", ("symptom", "cause"), distinct="finding_id"),
    Metric("tickscope.losses", "{record}", "counter", "Records lost, by stage.", "loss", ("stage", "source"), "count"),
    Metric("tickscope.probe.hits", "{hit}", "counter", "Times a probe ran.", "probe_status", ("probe",), "hits", absolute=True),
    Metric("tickscope.probe.run_time", "ns", "counter", "Time a probe ran.", "probe_status", ("probe",), "run_ns", absolute=True),
)

BY_TABLE: dict[str, tuple[Metric, ...]] = {t: tuple(m for m in METRICS if m.table == t) for t in {m.table for m in METRICS}}
