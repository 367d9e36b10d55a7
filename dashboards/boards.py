"""The Grafana dashboards, as code: ``python -m dashboards.boards`` writes dashboards/NAME.json (committed; a test
compares).

Panels name metrics of exporters/metrics.py and derive their query, unit and description from the declaration, so a
renamed metric fails here, not in front of an operator. Plain dictionaries, not grafana-foundation-sdk: all panels are
of a few shapes, and the queries, which the library does not make, are most of this file. A test has its
types, which are made from Grafana's schema, check every field. Model:
https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agent.common.places import PLACES
from dashboards.alerts import DOCS, QUEUE
from exporters.metric import Metric
from exporters.metrics import FINDING, METRICS

_BY_NAME: dict[str, Metric] = {m.name: m for m in METRICS}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"s": "s", "By": "bytes", "1": "percentunit", "{decision}/s": "cps", "{message}/s": "cps", "{unit}/s": "cps"}
#: Of counters, which are shown as rates.
_RATES = {"s": "percentunit"}
_LEFT_OUT = " Partitions with unknown values (their server is down) are left out of the sum."
#: Of several values, the smallest is the bad one. Elsewhere it is the largest.
_LEAST = {
    f"tickscope.queue.{name}" for name in ("up", "limit_in", "retention_left", "redelivery_in", "consumer.capacity")
}
_WIDTH, _HEIGHT = 12, 8
_FINDING = "tickscope_finding_open"
#: Labels of where the impacted process and the culprit of a finding ran -> the words for them. The id of a container is
#: too long for a column.
_PLACES = {
    FINDING[name].replace(".", "_"): name.removesuffix("_name").replace("_", " ")
    for name in PLACES
    if not name.endswith("container_id")
}


class Variable(NamedTuple):
    """A choice above the panels: the label that it selects, and the metric that has the values."""

    title: str
    label: str
    metric: str


#: The first is on every dashboard.
VARIABLES = {
    "instance": Variable("Node", "instance", "tickscope_build_info"),
    "process": Variable(
        "Process", "process_executable_name", '{__name__=~"tickscope_(tcp|limiter|syscall|tls)_.+",NODES}'
    ),
    "limiter": Variable("Limiter", "rate_limiting_limiter_id", "tickscope_limiter_decisions_by_limiter_total{NODES}"),
    "queue": Variable("Queue", "messaging_destination_name", "tickscope_queue_up{NODES}"),
    "cause": Variable("Cause", "tickscope_cause", "tickscope_findings_by_cause_total{NODES}"),
    **{
        word: Variable(word.capitalize(), label, f"{_FINDING}{{NODES}}")
        for label, word in _PLACES.items()
        if not word.startswith("culprit ")
    },
}


class Panel(NamedTuple):
    """labels: to group by, beside the node. quantile: of a histogram."""

    title: str
    metric: str
    labels: tuple[str, ...] = ()
    quantile: float = 0


class Number(NamedTuple):
    """One number over all chosen nodes. expression: SELECTED stands for the chosen nodes."""

    title: str
    expression: str
    text: str


class Findings(NamedTuple):
    """The list of open findings, each with its command."""

    title: str = "Open findings, and those that closed in the last 5 minutes"


Content = Panel | Number | Findings


class Board(NamedTuple):
    """command: what shows more on the node; with the page that explains it. rows: by title."""

    title: str
    variables: tuple[str, ...]
    command: tuple[str, str]
    rows: dict[str, tuple[Content, ...]]


_DAEMON = ("tickscope_daemon",)
_SOCKETS = (
    "process_executable_name",
    "tickscope_kind",
    "network_local_address",
    "network_local_port",
    "tickscope_device",
)
_GAUGE = ("rate_limiting_limiter_id", "process_executable_name", "tickscope_library")
_DECISIONS = Panel(
    "Decisions", "tickscope.limiter.decisions.by_limiter", ("rate_limiting_limiter_id", "rate_limiting_result")
)
_LAG = Panel("Queue lag", "tickscope.queue.lag", QUEUE)
_OLDEST = Panel("Oldest undelivered", "tickscope.queue.oldest_undelivered", QUEUE)
_OFFSET = Panel("Offset, as daemons report it", "ntp.offset", _DAEMON)
_SYNCHRONISED = Panel("Synchronised", "ntp.sync_status")
_JUMPS = Panel("Jumps of the wall clock", "ntp.jump.count", ("direction",))
_BY_CAUSE = Panel("Findings by cause", "tickscope.findings.by_cause", ("tickscope_cause",))
_LOST = Panel("Records lost", "tickscope.losses.by_source", ("tickscope_stage", "tickscope_source"))
_REPORTS = Panel("Losses noticed", "tickscope.losses.reports", ("tickscope_stage",))

BOARDS: dict[str, Board] = {
    "overview": Board(
        "tickscope: overview",
        ("process", "limiter", "queue"),
        ("tickscope explain last", "explain.md"),
        {
            "Now": (
                Number(
                    "Open alarms",
                    f'sum({_FINDING}{{tickscope_severity="alarm",SELECTED}}) or vector(0)',
                    "Findings of severity alarm.",
                ),
                Number(
                    "Clocks not synchronised",
                    "count(ntp_sync_status{SELECTED} == 0) or vector(0)",
                    "Nodes without a time daemon that synchronises the clock.",
                ),
                Number(
                    "Records lost",
                    "sum(increase(tickscope_losses_total{SELECTED}[$__range])) or vector(0)",
                    "In the shown time.",
                ),
                Number(
                    "Agents down",
                    'count(up{job=~".*tickscope.*",SELECTED} == 0) or vector(0)',
                    "Metrics pages that Prometheus cannot read.",
                ),
                Findings(),
                _BY_CAUSE,
                Panel("Findings by symptom", "tickscope.findings", ("tickscope_symptom", "tickscope_severity")),
            ),
            "Limiters, queues, clocks": (
                _DECISIONS,
                Panel("Refused share", "tickscope.limiter.refused_share", _GAUGE),
                _LAG,
                _OLDEST,
                _OFFSET,
                _SYNCHRONISED,
            ),
            "Network and system calls": (
                Panel("RTT, p99", "tickscope.tcp.rtt", ("process_executable_name", "network_role"), 0.99),
                Panel(
                    "Retransmits", "tickscope.tcp.retransmits.by_process", ("process_executable_name", "tickscope_kind")
                ),
                Panel("Connects", "tickscope.tcp.connects", ("tickscope_result",)),
                Panel("Resets", "tickscope.tcp.resets.by_process", ("process_executable_name", "network_io_direction")),
                Panel("TLS handshakes", "tickscope.tls.handshakes", ("tickscope_result", "network_role")),
                Panel("TLS handshake, p99", "tickscope.tls.handshake.duration", ("process_executable_name",), 0.99),
                Panel("Time to answer, p99", "tickscope.service.duration", ("process_executable_name",), 0.99),
                Panel("DNS lookups from 0.2 ms, p99", "tickscope.dns.lookup.duration", ("tickscope_result",), 0.99),
                Panel(
                    "Slow system calls",
                    "tickscope.syscall.slow.by_process",
                    ("process_executable_name", "syscall_name"),
                ),
                Panel(
                    "Blocked calls that waited for a CPU",
                    "tickscope.syscall.run_queue.by_call",
                    ("syscall_name",),
                ),
            ),
        },
    ),
    "clocks": Board(
        "tickscope: clocks",
        (),
        ("tickscope clock history", "clock-checks.md"),
        {
            "Jumps": (
                _JUMPS,
                Panel("Size of jumps, p99", "ntp.jump.size", ("direction",), 0.99),
                Panel(
                    "Clock changes, by process",
                    "tickscope.clock.changes.by_process",
                    ("tickscope_kind", "process_executable_name", "tickscope_via"),
                ),
                Panel("Notices of jumps", "tickscope.clock.notices", ("tickscope_channel",)),
                Panel("Notices not delivered", "tickscope.clock.notices.failed", ("tickscope_channel",)),
                Panel("Subscribers and notices dropped", "tickscope.clock.notices.dropped", ("tickscope_channel",)),
                Panel("Pending re-anchorings", "tickscope.clock.pending_reanchorings"),
                Panel("Subscribers", "tickscope.clock.subscribers"),
            ),
            "Time daemons": (
                _SYNCHRONISED,
                _OFFSET,
                Panel("Offset by source", "ntp.source.offset", ("tickscope_daemon", "tickscope_source")),
                Panel("Answers of sources (255: all)", "ntp.source.reach", ("tickscope_daemon", "tickscope_source")),
                Panel("Root distance", "ntp.daemon.root_distance", _DAEMON),
                Panel("Stratum", "ntp.daemon.stratum", _DAEMON),
                Panel("Frequency correction, by the daemon", "ntp.daemon.frequency", _DAEMON),
                Panel("Leap indicator (3: not synchronised)", "ntp.leap_indicator"),
            ),
            "Kernel": (
                Panel("Offset to CLOCK_MONOTONIC", "tickscope.clock.offset"),
                Panel("Drift against MONOTONIC_RAW", "tickscope.clock.drift"),
                Panel("Frequency correction", "tickscope.clock.frequency"),
                Panel("Kernel's error bound", "tickscope.clock.max_error"),
                Panel("Kernel's estimated error", "tickscope.clock.est_error"),
                Panel("Tick (0.01: no slew)", "tickscope.clock.tick"),
            ),
        },
    ),
    "limiters": Board(
        "tickscope: limiters",
        ("process", "limiter"),
        ("tickscope limiters", "limiters.md"),
        {
            "Decisions": (
                _DECISIONS,
                Panel("Refused share", "tickscope.limiter.refused_share", _GAUGE),
                Panel("Decision rate", "tickscope.limiter.rate", _GAUGE),
                Panel("Use of the limit", "tickscope.limiter.use", _GAUGE),
                Panel("Limit", "tickscope.limiter.limit", _GAUGE),
                Panel("Cost of observation, CPUs", "tickscope.limiter.watch_cost", _GAUGE),
            ),
            "Time": (
                Panel("Decision time, p99", "tickscope.limiter.decision.duration", ("rate_limiting_limiter_id",), 0.99),
                Panel("Imposed delay, p99", "tickscope.limiter.wait", ("rate_limiting_limiter_id",), 0.99),
            ),
            "Clock jumps": (
                Panel(
                    "Admitted too many after a jump",
                    "tickscope.limiter.over_admitted.by_limiter",
                    ("rate_limiting_limiter_id", "process_executable_name", "direction"),
                ),
                Panel(
                    "Wrongly refused after a jump",
                    "tickscope.limiter.wrongly_refused.by_limiter",
                    ("rate_limiting_limiter_id", "process_executable_name", "direction"),
                ),
                _JUMPS,
                Panel("Pending re-anchorings", "tickscope.clock.pending_reanchorings"),
            ),
        },
    ),
    "queues": Board(
        "tickscope: queues",
        ("queue", "process"),
        ("tickscope queues", "queues.md"),
        {
            "Backlog": (
                _LAG,
                _OLDEST,
                Panel("Time behind", "tickscope.queue.lag.age", QUEUE),
                Panel("Bytes behind (write-ahead logs)", "tickscope.queue.lag.size", QUEUE),
                Panel("Arrivals", "tickscope.queue.arrival.rate", QUEUE),
                Panel("Acknowledged", "tickscope.queue.acknowledged.rate", QUEUE),
                Panel("Stuck", "tickscope.queue.stuck", QUEUE),
                Panel("Waiting for a set time", "tickscope.queue.delayed", QUEUE),
            ),
            "Forecast": (
                Panel("Time until full, or deleted unread", "tickscope.queue.limit_in", QUEUE),
                Panel("Time until empty", "tickscope.queue.drains_in", QUEUE),
                Panel("Time until deleted for its age", "tickscope.queue.retention_left", QUEUE),
                Panel("Time until redelivery", "tickscope.queue.redelivery_in", QUEUE),
            ),
            "Consumers": (
                Panel("Unacknowledged", "tickscope.queue.pending", QUEUE),
                Panel("Oldest unacknowledged", "tickscope.queue.oldest_pending", QUEUE),
                Panel("Consumers", "tickscope.queue.consumers", QUEUE),
                Panel("Consumers' capacity", "tickscope.queue.consumer.capacity", QUEUE),
                Panel("Redelivered", "tickscope.queue.redelivered", QUEUE),
                Panel("Removed unread", "tickscope.queue.removed", QUEUE),
                Panel("Duplicates", "tickscope.queue.messages.duplicates.by_queue", ("messaging_destination_name",)),
                Panel(
                    "Out of order", "tickscope.queue.messages.out_of_order.by_queue", ("messaging_destination_name",)
                ),
            ),
            "Servers": (
                Panel("Answers polls", "tickscope.queue.up", ("messaging_system", "tickscope_cluster")),
                Panel(
                    "Duration of polls",
                    "tickscope.queue.poll.duration",
                    ("messaging_system", "tickscope_cluster", "tickscope_peer"),
                ),
            ),
            "Kernel": (
                Panel("Length of accept and device queues", "tickscope.socket.queue", _SOCKETS),
                Panel("Maximum length", "tickscope.socket.queue.limit", _SOCKETS),
                Panel("Dropped", "tickscope.socket.queue.drops", ("tickscope_kind",)),
                Panel("Connections that found the accept queue full", "tickscope.socket.accept.overflows"),
            ),
        },
    ),
    "findings": Board(
        "tickscope: findings",
        ("cause", "namespace", "pod", "container", "image", "unit"),
        ("tickscope findings", "findings.md"),
        {
            "Now": (Findings(),),
            "Over time": (
                _BY_CAUSE,
                Panel("Findings by symptom", "tickscope.findings", ("tickscope_symptom", "tickscope_severity")),
            ),
        },
    ),
    "agent": Board(
        "tickscope: agent health",
        (),
        ("tickscope status", "configuration.md"),
        {
            "Losses": (
                _LOST,
                _REPORTS,
                Panel("Rows that the store dropped", "tickscope.store.dropped"),
                Panel("Label sets beyond a limit", "tickscope.metrics.overflowed"),
            ),
            "Probes and processes": (
                Panel("State of probes", "tickscope.probe.state", ("tickscope_probe", "tickscope_state")),
                Panel("Version", "tickscope.build.info", ("version", "kernel")),
                Panel("Processor time", "tickscope.process.cpu", ("tickscope_role",)),
                Panel("Resident memory", "tickscope.process.memory", ("tickscope_role",)),
            ),
            "Store and exports": (
                Panel("Store on disk", "tickscope.store.size"),
                Panel("State of the store", "tickscope.store.state", ("tickscope_state",)),
                Panel("Rows that wait for the store", "tickscope.store.waiting"),
                Panel("Samples on the metrics page", "tickscope.metrics.samples"),
                Panel("Requests of the metrics page", "tickscope.page.requests", ("http_response_status_code",)),
                Panel("Connections closed without an answer", "tickscope.page.dropped", ("tickscope_reason",)),
                Panel("Sent over OTLP", "tickscope.otlp.sent", ("tickscope_signal",)),
                Panel("Rows not sent as spans", "tickscope.otlp.unsampled"),
                Panel("Findings sent to receivers", "tickscope.notify.sent", ("tickscope_receiver",)),
                Panel("Requests with findings that failed", "tickscope.notify.retries", ("tickscope_receiver",)),
                Panel("Events of findings that were dropped", "tickscope.notify.dropped", ("tickscope_receiver",)),
                Panel("State of receivers", "tickscope.notify.state", ("tickscope_receiver", "tickscope_state")),
            ),
        },
    ),
}


def labels_of(metric: Metric) -> set[str]:
    """Its labels in Prometheus, beside those of the scrape."""
    every = [m for m in METRICS if m.name == metric.name]
    names = {name for m in every for name in (*map(m.attribute, m.columns), *dict(m.labels), *m.observed)}
    return {re.sub(r"\W", "_", name) for name in names}


def _chosen(board: Board, has: set[str]) -> str:
    """The matchers of the board's variables, for a metric with these labels."""
    used = [n for n in ("instance", *board.variables) if n == "instance" or VARIABLES[n].label in has]
    return ",".join(f'{VARIABLES[n].label}=~"${n}"' for n in used)


def _is_count(metric: Metric) -> bool:
    """Whether it is a gauge that counts messages, hence is added up over partitions."""
    return metric.instrument == "gauge" and metric.unit == "{message}"


def expression(board: Board, panel: Panel) -> str:
    """PromQL of a panel. Each node has its own lines: over all nodes, the largest value would hide a node that is not
    synchronised, and any drift below 0. A gauge is aggregated only over labels that the panel leaves out.
    """
    metric = _BY_NAME[panel.metric]
    has, name = labels_of(metric), metric.prometheus
    by, chosen = ", ".join(("instance", *panel.labels)), f"{{{_chosen(board, has)}}}"
    if metric.instrument == "counter":
        return f"sum by ({by}) (rate({name}{chosen}[$__rate_interval]))"
    if metric.instrument == "histogram":
        rate = f"rate({name}_bucket{chosen}[$__rate_interval])"
        return f"histogram_quantile({panel.quantile}, sum by ({by}, le) ({rate}))"
    if has == {*panel.labels}:
        return f"{name}{chosen}"
    how = "sum" if _is_count(metric) else "min" if metric.name in _LEAST else "max"
    return f"{how} by ({by}) ({name}{chosen})"


def _command(board: Board) -> dict[str, Any]:
    command, page = board.command
    return {"title": f"On the node: {command}", "url": f"${{docs}}/{page}", "targetBlank": True}


def _lines(board: Board, panel: Panel) -> dict[str, Any]:
    metric = _BY_NAME[panel.metric]
    unit = _RATES.get(metric.unit, "cps") if metric.instrument == "counter" else _UNITS.get(metric.unit, "short")
    findings = {
        "title": "Findings of this node, with the command: tickscope explain ID",
        "url": "/d/tickscope-findings?var-instance=${__field.labels.instance:percentencode}&${__url_time_range}",
    }
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": metric.description + (_LEFT_OUT if _is_count(metric) else ""),
        "fieldConfig": {"defaults": {"unit": unit, "links": [findings]}, "overrides": []},
        "links": [_command(board)],
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": expression(board, panel),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in ("instance", *panel.labels)),
                **({"exemplar": True} if metric.exemplified_by else {}),
            }
        ],
    }


def _number(board: Board, panel: Number) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
    thresholds = {"mode": "absolute", "steps": steps}
    expr = panel.expression.replace("SELECTED", _chosen(board, set()))
    return {
        "type": "stat",
        "title": panel.title,
        "description": panel.text,
        "fieldConfig": {"defaults": {"unit": "short", "decimals": 0, "thresholds": thresholds}, "overrides": []},
        "options": {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}},
        "links": [_command(board)],
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": expr, "instant": True}],
    }


def _findings(board: Board, panel: Findings) -> dict[str, Any]:
    """A table with a column of commands. Only the id, which is hexadecimal, is part of a command that people copy."""
    shown = ("tickscope_severity", "tickscope_symptom", "tickscope_subject", "tickscope_cause")
    culprit = ("tickscope_culprit_comm", "tickscope_culprit_object")
    columns = ("instance", *shown, *culprit, *_PLACES, "Value", "command")  # those that no finding has are not shown
    names = [_PLACES.get(c, c.removeprefix("tickscope_").replace("_", " ")) for c in columns]
    order = {column: at for at, column in enumerate(columns)}
    chosen = _chosen(board, labels_of(_BY_NAME["tickscope.finding.open"]))
    explain = {"title": "How to read it", "url": "${docs}/explain.md", "targetBlank": True}
    return {
        "type": "table",
        "title": panel.title,
        "description": "State 1: open; 0: closed. Run the command on the node.",
        "fieldConfig": {
            "defaults": {},
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": "command"},
                    "properties": [{"id": "links", "value": [explain]}, {"id": "custom.width", "value": 280}],
                }
            ],
        },
        "links": [{"title": "On the node: tickscope explain last", "url": "${docs}/explain.md", "targetBlank": True}],
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": f'label_replace({_FINDING}{{{chosen}}}, "command", "tickscope explain $1",'
                ' "tickscope_finding_id", "([0-9a-f]+)")',
                "instant": True,
                "format": "table",
            }
        ],
        "transformations": [
            {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
            {
                "id": "organize",
                "options": {
                    "indexByName": order,
                    "renameByName": {**dict(zip(columns, names, strict=True)), "Value": "state"},
                },
            },
        ],
    }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, row in board.rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        x, y, height = 0, y + 1, 0
        for content in row:
            number += 1
            match content:
                case Panel():
                    made, width, high = _lines(board, content), _WIDTH, _HEIGHT
                case Number():
                    made, width, high = _number(board, content), 6, 4
                case Findings():
                    made, width, high = _findings(board, content), 24, 10
            if x + width > 24:
                x, y, height = 0, y + height, 0
            place = {"x": x, "y": y, "w": width, "h": high}
            yield {"id": number, "datasource": _SOURCE, "gridPos": place, **made}
            x, height = x + width, high
        y += height


def _variables(board: Board) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    for name in ("instance", *board.variables):
        one = VARIABLES[name]
        yield {
            "name": name,
            "type": "query",
            "label": one.title,
            "datasource": _SOURCE,
            "query": f"label_values({one.metric.replace('NODES', _chosen(board, set()))}, {one.label})",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
    yield {"name": "docs", "type": "constant", "label": "Documents", "query": DOCS, "hide": 2}


def _annotations(board: Board) -> Iterator[dict[str, Any]]:
    """Marks on every panel. Texts are names of the catalogue and ids, since Grafana shows them as HTML."""
    nodes = _chosen(board, set())
    jumps = f"increase(ntp_jump_count_total{{{nodes}}}[2m]) > 0"
    findings = f'{_FINDING}{{tickscope_severity="alarm",{nodes}}} == 1'
    explain = "tickscope explain {{tickscope_finding_id}}"
    for name, color, expr, title, text in (
        ("Clock jumps", "orange", jumps, "the clock jumped {{direction}}", "tickscope clock history"),
        ("Findings", "red", findings, "{{tickscope_symptom}}: {{tickscope_cause}}", explain),
    ):
        yield {
            "name": name,
            "datasource": _SOURCE,
            "enable": True,
            "iconColor": color,
            "expr": expr,
            "step": "15s",
            "titleFormat": title,
            "textFormat": text,
            "tagKeys": "instance",
        }


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard. Raises KeyError for a metric that does not exist."""
    board = BOARDS[name]
    return {
        "title": board.title,
        "uid": f"tickscope-{name}",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "tags": ["tickscope"],
        "links": [
            {
                "title": "tickscope",
                "type": "dashboards",
                "tags": ["tickscope"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": list(_variables(board))},
        "annotations": {"list": list(_annotations(board))},
        "panels": list(_panels(board)),
    }


def text(name: str) -> str:
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for board_name in BOARDS:
        Path(__file__).with_name(f"{board_name}.json").write_text(text(board_name))
