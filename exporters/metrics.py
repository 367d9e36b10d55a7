"""Every metric, declared once. OTLP, the Prometheus endpoint, and the checks of the dashboards and alert rules use this
list.

Names are ``tickscope.*``: the OpenTelemetry semantic conventions have none for round-trip times, handshakes, system
calls, clocks, rate limiters or queue lag (``messaging.consumer.lag`` is only proposed, semantic-conventions#792).
Values that every NTP client has are ``ntp.*``. What the time daemon reports is ``ntp.daemon.*``: ``ntp_stratum`` and
``ntp_root_delay_seconds`` are sapcc/ntp_exporter's names, ``ntp.skew`` is the Collector's chrony receiver's. Attributes
take the convention's name from ``Column.attribute`` if there is one. A metric from several tables has one entry per
table, distinguished by attributes.

Units are base units: seconds, bytes, ratios. Histograms are the kernel's log2 buckets of ns or us with their bounds in
seconds. Ours are [2^i, 2^(i+1)) while ``le`` and OTLP's explicit bounds include the upper end, so a value that is
exactly a bound is counted one bucket higher. Exponential histograms (of OTLP, Prometheus' native ones) would be
smaller, but their bounds are powers of two of a second, 7.4 % (ns) and 4.9 % (us) away from ours (docs/metrics.md).

Counters for alerts start at 0 with all their labels, since ``increase()`` ignores a series' first sample. A label with
unbounded values (a process, a source) is in a second metric, ``NAME.by_WHAT``; the first one counts the same without
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agent.common.fairness import UpperBound
from agent.common.places import PLACES
from agent.correlate.limiters import took
from agent.tables import TABLES
from exporters.fold import numbers
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
_LIMITER_GAUGE = ("rate_limiting.limiter.id", "process.executable.name", "tickscope.library")
#: Columns of a finding -> attributes of ``tickscope.finding.open``.
FINDING = {
    name: TABLES["finding"].by_name[name].attribute or f"tickscope.{name}"
    for name in ("finding_id", "symptom", "subject", "severity", "cause", "culprit_comm", "culprit_object", *PLACES)
}
#: Attributes of the agent's own metrics.
_OBSERVED = {
    "build.info": ("version", "python", "kernel"),
    "probe.state": ("tickscope.probe", "tickscope.state"),
    "process.cpu": ("tickscope.role",),
    "process.memory": ("tickscope.role",),
    "store.state": ("tickscope.state",),
    "otlp.sent": ("tickscope.signal",),
    "notify.sent": ("tickscope.receiver",),
    "notify.retries": ("tickscope.receiver",),
    "notify.dropped": ("tickscope.receiver",),
    "notify.state": ("tickscope.receiver", "tickscope.state"),
    "page.requests": ("http.response.status_code",),
    "page.dropped": ("tickscope.reason",),
}
_NTP_OFFSET = "How far the wall clock is behind, as the kernel (the rest of a slew) or a time daemon reports it."


def _blocked(rows: np.ndarray) -> np.ndarray:
    """What ``syscall_latency`` counts of a slow call, ns: with basis blocked, only the time asleep."""
    only = rows["basis"] == TABLES["slow_syscall"].code("basis", "blocked")
    return np.where(only, numbers(rows, "blocked_ns"), numbers(rows, "duration_ns"))


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
        label_if=("daddr", "role", "client"),  # a server's peers are unbounded
    ),
    Metric("tickscope.tcp.connects", "{connect}", "counter", "TCP connects that ended.", "tcp_connect", ("result",)),
    Metric(
        "tickscope.tcp.connect.duration",
        "s",
        "histogram",
        "Duration of TCP connects, from SYN_SENT to success or failure.",
        "tcp_connect",
        ("comm", "result"),
        "duration_ns",
        "ns",
        (14, 37),
        detail=("daddr",),
    ),
    *_counted(
        "tickscope.tcp.retransmits",
        "{segment}",
        "TCP segments retransmitted.",
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
        "Time from the arrival of a request on an accepted connection to the first write after it; resolution: one"
        " kernel tick.",
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
        "Duration of TLS handshakes.",
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
        "Duration of DNS lookups: those of 0.2 ms or longer, and all that failed.",
        "dns_lookup",
        ("result",),
        "duration_ns",
        "ns",
        (17, 36),
        detail=("comm",),
    ),
    Metric(
        "tickscope.syscall.duration",
        "s",
        "histogram",
        "Duration of observed system calls: all calls, calls in sampling windows (not scaled), or only time blocked.",
        "syscall_latency",
        _CALL,
        "hist",
        "ns",
        coarse=True,
        detail=("comm",),
        hist=("sum_ns", "", "max_ns"),
        single=("slow_syscall", _blocked),
    ),
    *_counted(
        "tickscope.syscall.errors",
        "{call}",
        "Observed system calls that returned an error (not scaled).",
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
        "Time that blocked calls were ready to run but waited for a CPU.",
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
        where=("kind", ("slow",)),
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
            ("offset.error", "s", "Error bound of the clock offset.", "err_ns", "ns"),
            ("drift", "1", "Rate of CLOCK_MONOTONIC relative to CLOCK_MONOTONIC_RAW, minus 1.", "mono_raw_ns", "ppb"),
            ("frequency", "1", "The kernel's frequency correction (adjtimex freq); 1e-6 is 1 ppm.", "freq_ppb", "ppb"),
            ("max_error", "s", "The kernel's error bound of the wall clock (adjtimex maxerror).", "maxerror_us", "us"),
            ("tai_offset", "s", "TAI minus UTC in the kernel; 0 if no daemon set it.", "tai_s", ""),
            (
                "est_error",
                "s",
                "The kernel's estimated error of the wall clock (adjtimex esterror).",
                "esterror_us",
                "us",
            ),
            ("tick", "s", "The kernel's tick (adjtimex tick); another value than 0.01 is a slew.", "tick_us", "us"),
            ("status", "{bit}", "The kernel's status bits (adjtimex status).", "status", ""),
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
        "How far the wall clock is behind a time source, as measured by a daemon or by tickscope.",
        "clock_daemon",
        ("daemon", "source"),
        "offset_ns",
        "ns",
        where=("kind", ("source",)),
    ),
    *(
        Metric(
            f"ntp.daemon.{name}",
            unit,
            "gauge",
            text,
            "clock_daemon",
            ("daemon",),
            column,
            raw,
            where=("kind", ("system",)),
        )
        for name, unit, text, column, raw in (
            (
                "root_distance",
                "s",
                "Error bound of the offset that the daemon reports (root distance).",
                "distance_ns",
                "ns",
            ),
            ("root_delay", "s", "Round-trip time to the reference clock.", "root_delay_ns", "ns"),
            (
                "root_dispersion",
                "s",
                "Error that accumulates between the reference clock and this host.",
                "root_dispersion_ns",
                "ns",
            ),
            ("stratum", "{hop}", "Hops to the reference clock.", "stratum", ""),
            (
                "frequency",
                "1",
                "Frequency correction that the oscillator needs, by the daemon's estimate; 1e-6 is 1 ppm.",
                "freq_ppb",
                "ppb",
            ),
            ("skew", "1", "Error bound of the daemon's frequency correction.", "skew_ppb", "ppb"),
        )
    ),
    Metric(
        "ntp.source.reach",
        "{bit}",
        "gauge",
        "Result of the last eight polls of a time source, one bit each: 255 if all were answered.",
        "clock_daemon",
        ("daemon", "source"),
        "reach",
        where=("kind", ("source",)),
    ),
    Metric(
        "ntp.leap_indicator",
        "{indicator}",
        "gauge",
        "Leap indicator of NTP: 0 none, 1 a second will be inserted, 2 one will be deleted, 3 not synchronised.",
        "clock_offset",
        (),
        "leap_indicator",
    ),
    Metric(
        "ntp.sync_status",
        "{status}",
        "gauge",
        "1: the kernel or a time daemon of this host reports the clock as synchronised; 0: neither does.",
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
        "Size of wall clock jumps, without sign.",
        "clock_change",
        ("direction",),
        "size_ns",
        "ns",
        (20, 61),
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
            since_start=True,
        )
        for name, unit, text, column in (
            ("", "{notice}", "Notices of clock jumps sent, counted once per subscriber.", "sent"),
            (
                ".acknowledged",
                "{notice}",
                "Notices that a program acknowledged: its limiters have adapted to the jump.",
                "acknowledged",
            ),
            (
                ".dropped",
                "{item}",
                "Subscribers that were disconnected, or notices that a slow hook command missed.",
                "dropped",
            ),
            (".failed", "{notice}", "Runs of the hook command that failed.", "failed"),
        )
    ),
    Metric(
        "tickscope.clock.pending_reanchorings",
        "{notice}",
        "gauge",
        "Notices that connected programs have not acknowledged yet.",
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
        "Observed decisions of rate limiters (not scaled).",
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
        "Requests that limiters admitted only because the wall clock jumped; a lower bound, from findings.",
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
        "Requests that limiters refused only because the wall clock jumped; a lower bound, from findings.",
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
        "tickscope.queue.lag.size",
        "By",
        "gauge",
        "Bytes of a write-ahead log not yet delivered.",
        "queue_lag",
        _QUEUE,
        "lag_bytes",
    ),
    Metric(
        "tickscope.queue.lag.age", "s", "gauge", "Time that the consumers are behind.", "queue_lag", _QUEUE, "lag_s"
    ),
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
        "Messages that wait for a set time.",
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
        "Fraction of time in which the consumers could take a message at once.",
        "queue_lag",
        _QUEUE,
        "consumer_capacity",
    ),
    Metric(
        "tickscope.queue.removed",
        "{message}",
        "gauge",
        "Messages removed before they were read, since the agent began to watch the queue.",
        "queue_lag",
        _QUEUE,
        "removed",
    ),
    Metric(
        "tickscope.queue.arrival.rate", "{message}/s", "gauge", "Messages that arrive.", "queue_lag", _QUEUE, "in_per_s"
    ),
    Metric(
        "tickscope.queue.acknowledged.rate",
        "{message}/s",
        "gauge",
        "Messages that are acknowledged.",
        "queue_lag",
        _QUEUE,
        "out_per_s",
    ),
    Metric(
        "tickscope.queue.up",
        "{server}",
        "gauge",
        "1: the server answered the last poll; 0: it did not. Only a server without queues has `tickscope_peer`.",
        "queue_lag",
        (*_QUEUE, "peer"),
        label_if=("peer", "destination", ""),
        values=answered,
    ),
    Metric(
        "tickscope.queue.stuck",
        "{queue}",
        "gauge",
        "1: messages wait and none is consumed (status stalled or stopped); 0: no.",
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
        "Time until the oldest unread message may be deleted for its age.",
        "queue_lag",
        _QUEUE,
        "retention_left_s",
    ),
    Metric(
        "tickscope.queue.redelivery_in",
        "s",
        "gauge",
        "Time until the first unacknowledged message is redelivered; negative: overdue.",
        "queue_lag",
        _QUEUE,
        "redelivery_s",
    ),
    Metric(
        "tickscope.queue.drains_in",
        "s",
        "gauge",
        "Time until a draining queue is empty, at the present rate.",
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
        "Messages checked for duplicates and order, as reported by consumers or read from a queue.",
        "message_order",
        "queue",
        ("source",),
        _QUEUE,
        value="messages",
    ),
    *_counted(
        "tickscope.queue.messages.duplicates",
        "{message}",
        "Checked messages that were duplicates.",
        "message_order",
        "queue",
        ("source",),
        _QUEUE,
        value="duplicates",
    ),
    *_counted(
        "tickscope.queue.messages.out_of_order",
        "{message}",
        "Checked messages that were out of order.",
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
        "Maximum length of the queue.",
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
        "Connections that met a full accept queue, all listeners together.",
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
        "Findings by symptom and severity. A finding counts once for each severity that it had.",
        "finding",
        ("symptom", "severity"),
        distinct="finding_id",
    ),
    Metric(
        "tickscope.findings.by_cause",
        "{finding}",
        "counter",
        "Findings by cause. A finding counts once for each cause that it had.",
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
        "Losses of records, including those of an unknown number of records.",
        "loss",
        ("stage",),
    ),
    Metric(
        "tickscope.probe.hits",
        "{hit}",
        "counter",
        "Runs of a probe's programs; counted while kernel.bpf_stats_enabled is 1.",
        "probe_status",
        ("probe",),
        "hits",
        absolute=True,
        since_start=True,
    ),
    Metric(
        "tickscope.probe.run_time",
        "s",
        "counter",
        "Run time of a probe's programs; measured while kernel.bpf_stats_enabled is 1.",
        "probe_status",
        ("probe",),
        "run_ns",
        "ns",
        absolute=True,
        since_start=True,
    ),
    # The gauge of exporters/open_findings.py.
    Metric(
        "tickscope.finding.open",
        "{finding}",
        "gauge",
        "1: the finding is open; 0: it closed in the last 5 minutes.",
        "",
        observed=("host.name", *FINDING.values()),
    ),
    # Gauges of exporters/limiter_use.py.
    Metric(
        "tickscope.limiter.rate",
        "{decision}/s",
        "gauge",
        "Observed decisions per second of a limiter, over the last 10 s.",
        "",
        observed=_LIMITER_GAUGE,
    ),
    Metric(
        "tickscope.limiter.refused_share",
        "1",
        "gauge",
        "Share of a limiter's decisions that were refused or failed, over the last 10 s; absent without decisions.",
        "",
        observed=_LIMITER_GAUGE,
    ),
    Metric(
        "tickscope.limiter.limit",
        "{unit}/s",
        "gauge",
        "Sum of the limits of a limiter's members and keys that made decisions in the last 10 s, units per second.",
        "",
        observed=_LIMITER_GAUGE,
    ),
    Metric(
        "tickscope.limiter.use",
        "1",
        "gauge",
        "Admitted units of a limiter as a share of its limit, over the last 10 s; above 1 while it spends a burst.",
        "",
        observed=_LIMITER_GAUGE,
    ),
    Metric(
        "tickscope.limiter.watch_cost",
        "1",
        "gauge",
        "CPU time of a limiter's probes, as a share of one CPU; absent for limiters without probes.",
        "",
        observed=_LIMITER_GAUGE,
    ),
    # The agent's own state (exporters/observed.py).
    *(
        Metric(f"tickscope.{name}", unit, instrument, text, "", observed=_OBSERVED.get(name, ()))
        for name, unit, instrument, text in (
            ("build.info", "{info}", "gauge", "Always 1; the labels have the versions."),
            ("probe.state", "{state}", "gauge", "1 for the current state of a probe, 0 for the other states."),
            ("process.cpu", "s", "counter", "CPU time of the agent's processes, by role."),
            ("process.memory", "By", "gauge", "Resident memory (RSS) of the agent's processes, by role."),
            ("store.state", "{state}", "gauge", "1 for the current state of the store, 0 for the other."),
            ("store.size", "By", "gauge", "Size of the store on disk."),
            ("store.segments", "{segment}", "gauge", "Segments of the store."),
            ("store.waiting", "{row}", "gauge", "Rows in memory that are not written yet."),
            ("store.dropped", "{row}", "counter", "Rows that were lost because the store could not write them."),
            ("otlp.sent", "{item}", "counter", "Spans, log records and data points that the collector accepted."),
            (
                "otlp.unsampled",
                "{row}",
                "counter",
                "Rows not exported as spans: unsampled decisions, fast operations, and rows beyond max_spans_per_s.",
            ),
            (
                "notify.sent",
                "{item}",
                "counter",
                "Events of findings that the journal, Alertmanager or Slack accepted; repeated alerts, too.",
            ),
            ("notify.retries", "{request}", "counter", "Requests with findings that failed and were sent again."),
            ("notify.dropped", "{item}", "counter", "Events of findings that a receiver will never get."),
            (
                "notify.state",
                "{state}",
                "gauge",
                "1 for the current state of a receiver of findings (ok, retrying, down), 0 for the others.",
            ),
            ("page.requests", "{request}", "counter", "Requests that the metrics page answered, by status."),
            (
                "page.dropped",
                "{connection}",
                "counter",
                "Connections to the metrics page that were closed without an answer, by reason.",
            ),
            (
                "metrics.samples",
                "{sample}",
                "gauge",
                "Samples of event metrics on the metrics page; at most metrics.samples.",
            ),
            (
                "metrics.overflowed",
                "{series}",
                "counter",
                "Label sets beyond a limit: summed in series otel_metric_overflow, or left out (gauges).",
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
