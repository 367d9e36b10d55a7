"""Every metric, declared once. OTLP, the Prometheus endpoint, and the checks of the dashboards and alert rules use this
list.

Names are ``tickscope.*``: the OpenTelemetry semantic conventions have none for round-trip times, handshakes, system
calls, clocks, rate limiters or queue lag (``messaging.consumer.lag`` is only proposed, semantic-conventions#792).
Values that every NTP client has are ``ntp.*``. Attributes take the convention's name from ``Column.attribute`` if there
is one. A metric from several tables has one entry per table, distinguished by attributes.

Units are base units: seconds, bytes, ratios. Histograms are the kernel's log2 buckets of ns or us with their bounds in
seconds. Ours are [2^i, 2^(i+1)) while ``le`` and OTLP's explicit bounds include the upper end, so a value that is
exactly a bound is counted one bucket higher. An OTLP exponential histogram would be smaller, but its bounds are powers
of two of a second, up to 7 % away from ours.

Counters for alerts start at 0 with all their labels, since ``increase()`` ignores a series' first sample. A label with
unbounded values (a process, a source) is in a second metric, ``NAME.by_WHAT``; the first one counts the same without
it.
"""

from __future__ import annotations

from typing import Any

from agent.common.fairness import UpperBound
from agent.correlate.limiters import took
from exporters.metric import Metric
from exporters.queue_values import answered, stuck

#: Series per metric before new ones are folded into one marked ``otel.metric.overflow`` (the SDK's own default), or
#: left out and counted if their sum would be meaningless (gauges).
MAX_SERIES = 2000
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "metrics",
        "series of one metric",
        MAX_SERIES,
        "summed under `otel_metric_overflow`; gauges are left out",
        "`tickscope_metrics_overflowed_total`",
        setting="`metrics: {detail: full}`",
    ),
)

_QUEUE = ("system", "cluster", "destination", "partition", "consumer_group")
_CALL = ("syscall", "basis", "kind")
_LIMITER = ("comm", "limiter_id", "library", "source", "result")
_SOCKETS = ("comm", "kind", "saddr", "sport", "device")
_JUMPED = ("direction", ("forward", "backward"))
_COUNTED = ("quality", ("exact", "bounded"))
_NOT_CONNECTIONS = ("kind", ("accept", "qdisc"))
_NTP_OFFSET = (
    "What the wall clock is believed to be behind: what the kernel has still to slew away, and what daemons say."
)


def _counted(
    name: str, unit: str, text: str, table: str, by: str, bounded: tuple[str, ...], more: tuple[str, ...], **rest: Any
) -> tuple[Metric, Metric]:
    """A counter that starts at 0 with its bounded labels, and ``NAME.by_BY``, which has more labels."""
    alone = {k: v for k, v in rest.items() if k not in ("detail", "beside")}
    return (
        Metric(name, unit, "counter", text, table, bounded, **alone),
        Metric(f"{name}.by_{by}", unit, "counter", f"{text[:-1]}, by {by}.", table, (*bounded, *more), **rest),
    )


METRICS: tuple[Metric, ...] = (
    Metric(
        "tickscope.tcp.rtt",
        "s",
        "histogram",
        "Smoothed round-trip time samples of TCP connections.",
        "tcp_rtt",
        ("comm", "role"),
        "hist",
        "us",
        (5, 23),
        detail=("daddr",),
        hist=("rtt_sum_us", "rtt_min_us", "rtt_max_us"),
        client_only="daddr",
    ),
    Metric("tickscope.tcp.connects", "{connect}", "counter", "TCP connects that ended.", "tcp_connect", ("result",)),
    Metric(
        "tickscope.tcp.connect.duration",
        "s",
        "histogram",
        "From SYN_SENT to the end of the connect.",
        "tcp_connect",
        ("comm", "result"),
        "duration_ns",
        "ns",
        (14, 36),
        detail=("daddr",),
    ),
    *_counted(
        "tickscope.tcp.retransmits",
        "{segment}",
        "TCP segments sent again.",
        "tcp_retransmit",
        "process",
        ("kind",),
        ("comm",),
        value="count",
    ),
    *_counted(
        "tickscope.tcp.resets",
        "{reset}",
        "TCP resets sent and received.",
        "tcp_reset",
        "process",
        ("direction",),
        ("comm",),
    ),
    Metric(
        "tickscope.service.duration",
        "s",
        "histogram",
        "From the arrival of what a process reads on an accepted connection to what it writes next; in ticks, 0 where"
        " that was quicker.",
        "service_latency",
        ("comm",),
        "hist",
        "ns",
        (21, 36),
        hist=("sum_ns", "", "max_ns"),
        detail=("sport",),
    ),
    Metric(
        "tickscope.tls.handshakes",
        "{handshake}",
        "counter",
        "TLS handshakes that ended.",
        "tls_handshake",
        ("role", "result"),
    ),
    Metric(
        "tickscope.tls.handshake.duration",
        "s",
        "histogram",
        "Wall time of TLS handshakes.",
        "tls_handshake",
        ("comm", "role", "library", "tls_version", "result"),
        "duration_ns",
        "ns",
        (14, 36),
    ),
    Metric(
        "tickscope.dns.lookup.duration",
        "s",
        "histogram",
        "Time until a name was known, or given up: from 0.2 ms on, and all that failed.",
        "dns_lookup",
        ("result",),
        "duration_ns",
        "ns",
        (17, 34),
        detail=("comm",),
    ),
    Metric(
        "tickscope.syscall.duration",
        "s",
        "histogram",
        "System call time as seen: all calls, those in sampling windows (not scaled), or only the time blocked.",
        "syscall_latency",
        _CALL,
        "hist",
        "ns",
        coarse=True,
        detail=("comm",),
        hist=("sum_ns", "", "max_ns"),
    ),
    *_counted(
        "tickscope.syscall.errors",
        "{call}",
        "System calls that returned an error, as seen.",
        "syscall_latency",
        "call",
        ("basis",),
        ("syscall", "kind"),
        value="errors",
        detail=("comm",),
    ),
    *_counted(
        "tickscope.syscall.run_queue",
        "s",
        "Time runnable but not running inside blocked calls.",
        "syscall_latency",
        "call",
        ("kind",),
        ("syscall",),
        value="run_queue_ns",
        raw="ns",
        detail=("comm",),
    ),
    *_counted(
        "tickscope.syscall.slow",
        "{call}",
        "Slow system calls.",
        "slow_syscall",
        "process",
        ("kind",),
        ("comm", "syscall"),
        detail=("fd_type",),
    ),
    *_counted(
        "tickscope.clock.changes",
        "{change}",
        "Changes of the system's clocks.",
        "clock_change",
        "process",
        ("kind",),
        ("comm", "via"),
    ),
    *(
        Metric(f"tickscope.clock.{name}", unit, "gauge", text, "clock_offset", (), column, raw, drift=name == "drift")
        for name, unit, text, column, raw in (
            ("offset", "s", "CLOCK_REALTIME minus CLOCK_MONOTONIC.", "real_mono_ns", "ns"),
            ("offset.error", "s", "Error bound of the clock offsets.", "err_ns", "ns"),
            ("drift", "1", "Rate of CLOCK_MONOTONIC against CLOCK_MONOTONIC_RAW, less 1.", "mono_raw_ns", "ppb"),
            ("frequency", "1", "The kernel's frequency correction (adjtimex).", "freq_ppb", "ppb"),
            ("max_error", "s", "The kernel's own error bound (adjtimex maxerror).", "maxerror_us", "us"),
            ("tai_offset", "s", "TAI minus UTC as the kernel knows it.", "tai_s", ""),
            ("est_error", "s", "The kernel's estimated error (adjtimex esterror).", "esterror_us", "us"),
            ("tick", "s", "The kernel's tick (adjtimex), 0.01 where nobody slews by it.", "tick_us", "us"),
            ("status", "{bit}", "The kernel's status bits (adjtimex).", "status", ""),
        )
    ),
    Metric(
        "ntp.offset",
        "s",
        "gauge",
        _NTP_OFFSET,
        "clock_offset",
        (),
        "ntp_offset_ns",
        "ns",
        labels=(("tickscope.daemon", "kernel"),),
    ),
    Metric(
        "ntp.offset",
        "s",
        "gauge",
        _NTP_OFFSET,
        "clock_daemon",
        ("daemon",),
        "offset_ns",
        "ns",
        where=("kind", ("system",)),
    ),
    Metric(
        "ntp.source.offset",
        "s",
        "gauge",
        "What the wall clock is behind a time source, as a daemon or our own query measured it.",
        "clock_daemon",
        ("daemon", "source"),
        "offset_ns",
        "ns",
        where=("kind", ("source",)),
    ),
    *(
        Metric(
            f"ntp.{name}", unit, "gauge", text, "clock_daemon", ("daemon",), column, raw, where=("kind", ("system",))
        )
        for name, unit, text, column, raw in (
            ("root_distance", "s", "Bound of ntp.offset, as the daemon has it: root distance.", "distance_ns", "ns"),
            ("root_delay", "s", "Round trip to the reference clock.", "root_delay_ns", "ns"),
            ("root_dispersion", "s", "Error added on the way from the reference clock.", "root_dispersion_ns", "ns"),
            ("stratum", "{hop}", "Hops to the reference clock.", "stratum", ""),
            ("frequency", "1", "Correction that the oscillator is believed to need.", "freq_ppb", "ppb"),
            ("skew", "1", "Error bound of ntp.frequency.", "skew_ppb", "ppb"),
        )
    ),
    Metric(
        "ntp.source.reach",
        "{bit}",
        "gauge",
        "The last eight polls of a time source, a bit each.",
        "clock_daemon",
        ("daemon", "source"),
        "reach",
        where=("kind", ("source",)),
    ),
    Metric(
        "ntp.leap_indicator",
        "{indicator}",
        "gauge",
        "0 none, 1 a second will be inserted, 2 one will be deleted, 3 not synchronised.",
        "clock_offset",
        (),
        "leap_indicator",
    ),
    Metric(
        "ntp.sync_status",
        "{status}",
        "gauge",
        "1 where the kernel or a time daemon of this host says that the clock is synchronised, else 0.",
        "clock_offset",
        (),
        "synchronised",
    ),
    Metric(
        "ntp.jump.count",
        "{jump}",
        "counter",
        "Jumps of the wall clock: steps and leap seconds.",
        "clock_change",
        ("direction",),
        where=_JUMPED,
    ),
    Metric(
        "ntp.jump.size",
        "s",
        "histogram",
        "Sizes of the wall clock's jumps.",
        "clock_change",
        ("direction",),
        "size_ns",
        "ns",
        where=_JUMPED,
        magnitude=True,
    ),
    *(
        Metric(
            f"tickscope.clock.notices{name}",
            unit,
            "counter",
            text,
            "notice_status",
            ("channel",),
            column,
            absolute=True,
        )
        for name, unit, text, column in (
            ("", "{notice}", "Jump notices sent, one a subscriber.", "sent"),
            (".acknowledged", "{notice}", "Jump notices acknowledged: the limiter has re-anchored.", "acknowledged"),
            (".dropped", "{item}", "Subscribers dropped, or notices that a slow hook left out.", "dropped"),
            (".failed", "{notice}", "Deliveries of a hook that failed.", "failed"),
        )
    ),
    Metric(
        "tickscope.clock.pending_reanchorings",
        "{notice}",
        "gauge",
        "Jump notices sent and not yet acknowledged by programs now connected.",
        "notice_status",
        (),
        "pending",
    ),
    Metric(
        "tickscope.clock.subscribers",
        "{subscriber}",
        "gauge",
        "Programs connected to the notice socket.",
        "notice_status",
        (),
        "subscribers",
    ),
    *_counted(
        "tickscope.limiter.decisions",
        "{decision}",
        "Decisions of rate limiters, as seen.",
        "limiter_decision",
        "limiter",
        ("result",),
        ("comm", "limiter_id", "library", "source"),
        beside=("result", ("allowed", "refused")),
    ),
    Metric(
        "tickscope.limiter.decision.duration",
        "s",
        "histogram",
        "Duration of a decision, without the delay that it imposed; cancelled decisions are left out.",
        "limiter_decision",
        _LIMITER,
        "duration_ns",
        "ns",
        coarse=True,
        values=took,
    ),
    Metric(
        "tickscope.limiter.wait",
        "s",
        "histogram",
        "Delay imposed by a decision.",
        "limiter_decision",
        _LIMITER,
        "wait_ns",
        "ns",
        coarse=True,
    ),
    *_counted(
        "tickscope.limiter.over_admitted",
        "{request}",
        "Requests that limiters admitted because the wall clock had jumped: on true time they would have refused them."
        " At least, of limiters that a finding counts.",
        "limiter_jump",
        "limiter",
        ("direction",),
        ("comm", "limiter_id", "library"),
        value="over_admitted",
        where=_COUNTED,
    ),
    *_counted(
        "tickscope.limiter.wrongly_refused",
        "{request}",
        "Requests that limiters refused because the wall clock had jumped: on true time they would have admitted them."
        " At least, of limiters that a finding counts.",
        "limiter_jump",
        "limiter",
        ("direction",),
        ("comm", "limiter_id", "library"),
        value="wrongly_refused",
        where=_COUNTED,
    ),
    Metric(
        "tickscope.queue.lag", "{message}", "gauge", "Messages not yet delivered.", "queue_lag", _QUEUE, "lag_messages"
    ),
    Metric(
        "tickscope.queue.lag.size", "By", "gauge", "Bytes of a log not yet delivered.", "queue_lag", _QUEUE, "lag_bytes"
    ),
    Metric("tickscope.queue.lag.age", "s", "gauge", "Age of the lag in time.", "queue_lag", _QUEUE, "lag_s"),
    Metric(
        "tickscope.queue.oldest_undelivered",
        "s",
        "gauge",
        "Age of the oldest undelivered message.",
        "queue_lag",
        _QUEUE,
        "oldest_undelivered_s",
    ),
    Metric(
        "tickscope.queue.oldest_pending",
        "s",
        "gauge",
        "Age of the oldest unacknowledged message.",
        "queue_lag",
        _QUEUE,
        "oldest_pending_s",
    ),
    Metric(
        "tickscope.queue.pending",
        "{message}",
        "gauge",
        "Messages delivered and not acknowledged.",
        "queue_lag",
        _QUEUE,
        "pending",
    ),
    Metric(
        "tickscope.queue.delayed",
        "{message}",
        "gauge",
        "Messages that a consumer holds until a set time.",
        "queue_lag",
        _QUEUE,
        "delayed",
    ),
    Metric(
        "tickscope.queue.consumers", "{consumer}", "gauge", "Consumers of the queue.", "queue_lag", _QUEUE, "consumers"
    ),
    Metric(
        "tickscope.queue.redelivered",
        "{message}",
        "gauge",
        "Messages that were delivered more than once (see the table `queue_lag`).",
        "queue_lag",
        _QUEUE,
        "redelivered",
    ),
    Metric(
        "tickscope.queue.consumer.capacity",
        "1",
        "gauge",
        "Fraction of time in which the queue could deliver to its consumers at once.",
        "queue_lag",
        _QUEUE,
        "consumer_capacity",
    ),
    Metric(
        "tickscope.queue.removed",
        "{message}",
        "gauge",
        "Messages that were removed before they were read, since the agent began to watch.",
        "queue_lag",
        _QUEUE,
        "removed",
    ),
    Metric("tickscope.queue.arrival.rate", "{message}/s", "gauge", "Arrivals.", "queue_lag", _QUEUE, "in_per_s"),
    Metric(
        "tickscope.queue.acknowledged.rate",
        "{message}/s",
        "gauge",
        "Acknowledgements.",
        "queue_lag",
        _QUEUE,
        "out_per_s",
    ),
    Metric(
        "tickscope.queue.up",
        "{server}",
        "gauge",
        "1: the server answered the last poll; 0: it did not.",
        "queue_lag",
        _QUEUE,
        values=answered,
    ),
    Metric(
        "tickscope.queue.stuck",
        "{queue}",
        "gauge",
        "1: messages wait, and nothing reads them (status stalled or stopped).",
        "queue_lag",
        _QUEUE,
        values=stuck,
    ),
    Metric(
        "tickscope.queue.poll.duration",
        "s",
        "gauge",
        "Duration of the last poll of the server.",
        "queue_lag",
        (*_QUEUE[:2], "peer"),
        "poll_ns",
        "ns",
    ),
    Metric(
        "tickscope.queue.retention_left",
        "s",
        "gauge",
        "Time until the oldest unread message is deleted for its age.",
        "queue_lag",
        _QUEUE,
        "retention_left_s",
    ),
    Metric(
        "tickscope.queue.drains_in",
        "s",
        "gauge",
        "Time until a draining queue is empty at the present rate.",
        "queue_lag",
        _QUEUE,
        "drains_in_s",
    ),
    Metric(
        "tickscope.queue.limit_in",
        "s",
        "gauge",
        "Time until the server's memory is full or the oldest message is deleted unread, at the present rate.",
        "queue_lag",
        _QUEUE,
        "limit_in_s",
    ),
    *_counted(
        "tickscope.queue.messages.checked",
        "{message}",
        "Messages that consumers reported, or that were read from a queue.",
        "message_order",
        "queue",
        ("source",),
        _QUEUE,
        value="messages",
    ),
    *_counted(
        "tickscope.queue.messages.duplicates",
        "{message}",
        "Checked messages that came before.",
        "message_order",
        "queue",
        ("source",),
        _QUEUE,
        value="duplicates",
    ),
    *_counted(
        "tickscope.queue.messages.out_of_order",
        "{message}",
        "Checked messages that came after later ones.",
        "message_order",
        "queue",
        ("source",),
        _QUEUE,
        value="out_of_order",
    ),
    Metric(
        "tickscope.socket.queue",
        "{item}",
        "gauge",
        "Length of a listening socket's accept queue or of a network device's queue.",
        "socket_queue",
        _SOCKETS,
        "queue",
        where=_NOT_CONNECTIONS,
    ),
    Metric(
        "tickscope.socket.queue.limit",
        "{item}",
        "gauge",
        "Limit of that queue.",
        "socket_queue",
        _SOCKETS,
        "limit",
        where=_NOT_CONNECTIONS,
    ),
    *_counted(
        "tickscope.socket.queue.drops",
        "{item}",
        "Connections (accept) and packets (qdisc) that kernel queues dropped.",
        "socket_queue",
        "queue",
        ("kind",),
        ("saddr", "sport", "device"),
        value="drops",
        where=_NOT_CONNECTIONS,
        absolute=True,
        identity=("sock_id", "device"),
    ),
    Metric(
        "tickscope.socket.accept.overflows",
        "{connection}",
        "counter",
        "Connections that found the accept queue full, of all listeners.",
        "socket_queue",
        (),
        "overflows",
        where=("kind", ("accept",)),
        absolute=True,
    ),
    Metric(
        "tickscope.findings",
        "{finding}",
        "counter",
        "Findings, once in each severity that they had.",
        "finding",
        ("symptom", "severity"),
        distinct="finding_id",
    ),
    Metric(
        "tickscope.findings.by_cause",
        "{finding}",
        "counter",
        "Findings, once under each cause that they were given.",
        "finding",
        ("cause",),
        distinct="finding_id",
    ),
    *_counted(
        "tickscope.losses", "{record}", "Records lost.", "loss", "source", ("stage",), ("source",), value="count"
    ),
    Metric(
        "tickscope.losses.reports",
        "{report}",
        "counter",
        "Losses noticed, those too of which nobody knows how many records they were.",
        "loss",
        ("stage",),
    ),
    Metric(
        "tickscope.probe.hits",
        "{hit}",
        "counter",
        "Times a probe ran.",
        "probe_status",
        ("probe",),
        "hits",
        absolute=True,
    ),
    Metric(
        "tickscope.probe.run_time",
        "s",
        "counter",
        "Time a probe ran.",
        "probe_status",
        ("probe",),
        "run_ns",
        "ns",
        absolute=True,
    ),
    # Gauges of exporters/limiter_use.py.
    Metric(
        "tickscope.limiter.rate",
        "{decision}/s",
        "gauge",
        "Decisions a second of a limiter, as seen, in the last ten seconds.",
        "",
    ),
    Metric(
        "tickscope.limiter.refused_share",
        "1",
        "gauge",
        "Share of a limiter's decisions that were refused, or failed; not there while it does not decide.",
        "",
    ),
    Metric(
        "tickscope.limiter.limit",
        "{unit}/s",
        "gauge",
        "Limit of all of a limiter's members and keys that decided together, units a second.",
        "",
    ),
    Metric(
        "tickscope.limiter.use",
        "1",
        "gauge",
        "What a limiter let through, of its limit; above 1 while a burst is spent.",
        "",
    ),
    Metric(
        "tickscope.limiter.watch_cost",
        "1",
        "gauge",
        "What probes at a limiter take of one CPU; not there for those that tell themselves, or are seen on the wire.",
        "",
    ),
    # The agent's own state (exporters/observed.py).
    *(
        Metric(f"tickscope.{name}", unit, instrument, text, "")
        for name, unit, instrument, text in (
            ("build.info", "{info}", "gauge", "Always 1; version, Python and kernel are labels."),
            ("probe.state", "{state}", "gauge", "1 for the state that a probe is in, 0 for the others."),
            ("process.cpu", "s", "counter", "Processor time of the agent's processes, by role."),
            ("process.memory", "By", "gauge", "Resident memory of the agent's processes, by role."),
            ("store.state", "{state}", "gauge", "1 for the state that the store is in, 0 for the other."),
            ("store.size", "By", "gauge", "The store on disk."),
            ("store.segments", "{segment}", "gauge", "Segments of the store."),
            ("store.waiting", "{row}", "gauge", "Rows that wait in memory to be written."),
            ("store.dropped", "{row}", "counter", "Rows that the store could not keep."),
            ("otlp.sent", "{item}", "counter", "Spans, log records and points that the collector took."),
            (
                "otlp.unsampled",
                "{row}",
                "counter",
                (
                    "Rows that did not become spans: plain decisions not sampled, and what came faster than"
                    " max_spans_per_s."
                ),
            ),
            ("page.requests", "{request}", "counter", "Requests that the metrics page answered, by status."),
            (
                "page.dropped",
                "{connection}",
                "counter",
                "Connections to the metrics page that were closed without an answer, by reason.",
            ),
            ("metrics.samples", "{sample}", "gauge", "Samples that the metrics of events are on the metrics page."),
            (
                "metrics.overflowed",
                "{series}",
                "counter",
                "Times that a label set found no room: its values are in the series otel_metric_overflow, or left out.",
            ),
        )
    ),
)

#: Metrics that no alert uses, with few labels that are not known from the start: they need no second metric that starts
#: at 0.
NOT_INCIDENTS = frozenset({"tickscope.probe.hits", "tickscope.probe.run_time"})


def registry(*, full: bool) -> tuple[Metric, ...]:
    """The metrics, with all detail if ``full``."""
    return tuple(m.full() for m in METRICS) if full else METRICS
