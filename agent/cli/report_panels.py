"""The panels of a report. Each is declared once here: a table, what makes a curve, what is measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: line: a state that lasts until the next row. points: single events. bars: counts in an interval.
Style = Literal["line", "points", "bars"]
_RATE = "coalesce(limit_per_s, burst * 1e9 / nullif(window_ns, 0))"
_QUEUE = "concat_ws(' ', destination, '(' || consumer_group || ')')"
_WAITED = "coalesce(lag_s, oldest_undelivered_s)"
#: The peer; of a server's sockets the port of this host, since each connection has another peer.
_PEER = "CASE role WHEN 'server' THEN concat('clients of port ', sport) ELSE peer END"
_OTHERS = "comm NOT LIKE 'tickscope%'"
_PROCESS = "concat(comm, ' ', pid)"
_SECONDS = "interval_ns / 1e9"


@dataclass(frozen=True)
class Curve:
    """value: an SQL aggregate over the rows of an interval. per_s: it is divided by the interval's length. name: empty
    where a panel has one kind of curve, which is then named after ``ReportPanel.by`` alone. least: another aggregate,
    the lower edge of the band whose upper edge is ``value``; empty if the curve is no band.
    """

    value: str
    name: str = ""
    per_s: bool = False
    least: str = ""


@dataclass(frozen=True)
class ReportPanel:
    """by: an SQL text; each of its values has a curve of each kind. each: an SQL text; each of its values has a panel.
    Those with the largest ``order``, an SQL aggregate, are shown. unit: of the values (ns, us, s, bytes, 1/s, or empty
    for a number). parts: SQL columns of which the values are added up, where rows are states of parts (partitions).
    """

    title: str
    table: str
    unit: str
    curves: tuple[Curve, ...]
    order: str
    by: str = "''"
    each: str = "''"
    style: Style = "line"
    where: str = "true"
    parts: str = ""


PANELS = (
    ReportPanel(
        "Decisions",
        "limiter_decision",
        "1/s",
        tuple(
            Curve(f"sum(1 / coalesce(sample_rate, 1)) FILTER (result IN ({results}))", name, per_s=True)
            for name, results in (
                ("allowed", "'allowed'"),
                ("refused", "'refused', 'error'"),
                ("delayed", "'delayed', 'cancelled'"),
            )
        ),
        "count(*)",
        each="limiter_id",
        style="bars",
    ),
    ReportPanel(
        "Duration of decisions",
        "limiter_decision",
        "ns",
        (Curve("max(duration_ns)"),),
        "max(duration_ns)",
        by="limiter_id",
        style="points",
        where="duration_ns IS NOT NULL",
    ),
    ReportPanel(
        "Decisions of sampled limiters, estimated",
        "limiter_rate",
        "1/s",
        (Curve("sum(allowed)", "allowed", per_s=True), Curve("sum(refused)", "refused", per_s=True)),
        "sum(allowed + refused)",
        each="limiter_id",
        style="bars",
    ),
    ReportPanel(
        "Queue lag, messages",
        "queue_lag",
        "",
        (Curve("max(lag_messages)", least="min(lag_messages)"),),
        "max(lag_messages)",
        by=_QUEUE,
        parts="partition",
        where="lag_messages IS NOT NULL",
    ),
    ReportPanel(
        "Queue lag, time",
        "queue_lag",
        "s",
        (Curve(f"max({_WAITED})", least=f"min({_WAITED})"),),
        f"max({_WAITED})",
        by=_QUEUE,
        where=f"{_WAITED} IS NOT NULL",
    ),
    ReportPanel(
        "Response times of servers on this host, slowest",
        "service_latency",
        "ns",
        (Curve("max(max_ns)"),),
        "max(max_ns)",
        by="concat(comm, ' ', pid, ', port ', sport)",
        style="points",
    ),
    ReportPanel(
        "Round-trip times, shortest to longest",
        "tcp_rtt",
        "us",
        (Curve("max(rtt_max_us)", least="min(rtt_min_us)"),),
        "max(rtt_max_us)",
        by=_PEER,
    ),
    ReportPanel(
        "Retransmitted segments",
        "tcp_retransmit",
        "1/s",
        (Curve("sum(count)", per_s=True),),
        "sum(count)",
        by=_PEER,
        style="bars",
    ),
    ReportPanel(
        "Connects, slowest",
        "tcp_connect",
        "ns",
        (Curve("max(duration_ns)"),),
        "max(duration_ns)",
        by="concat(comm, ' to ', peer, CASE WHEN result <> 'ok' THEN ' ' || result ELSE '' END)",
        style="points",
    ),
    ReportPanel(
        "TLS handshakes, slowest",
        "tls_handshake",
        "ns",
        (Curve("max(duration_ns)"),),
        "max(duration_ns)",
        by=f"concat_ws(' ', comm, {_PEER}) || CASE WHEN result <> 'ok' THEN ' ' || result ELSE '' END",
        style="points",
    ),
    ReportPanel(
        "Name lookups, slowest",
        "dns_lookup",
        "ns",
        (Curve("max(duration_ns)"),),
        "max(duration_ns)",
        by="concat(coalesce(name, peer), CASE WHEN result <> 'ok' THEN ' ' || result ELSE '' END)",
        style="points",
    ),
    ReportPanel(
        "Slow system calls",
        "slow_syscall",
        "ns",
        (Curve("max(duration_ns)"),),
        "max(duration_ns)",
        by=f"concat({_PROCESS}, ' ', syscall)",
        style="points",
        where=f"kind = 'slow' AND {_OTHERS}",
    ),
    ReportPanel(
        "Waits for a CPU",
        "cpu_wait",
        "ns",
        (Curve("sum(wait_ns)"),),
        "sum(wait_ns)",
        by=_PROCESS,
        style="bars",
        where=_OTHERS,
    ),
    ReportPanel(
        "CPU time, cores",
        "cpu_use",
        "",
        (Curve(f"sum(user_ns + system_ns) / 1e9 / max({_SECONDS})"),),
        "sum(user_ns + system_ns)",
        by=_PROCESS,
        where=_OTHERS,
    ),
    ReportPanel(
        "Wall clock against time sources",
        "clock_daemon",
        "ns",
        (Curve("max_by(offset_ns, abs(offset_ns))"),),
        "max(abs(offset_ns))",
        by="concat_ws(' ', daemon, source)",
        where="offset_ns IS NOT NULL",
    ),
)
