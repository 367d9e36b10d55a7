"""The Grafana dashboard, as code: ``python -m dashboards.overview`` writes dashboards/overview.json (committed; a test
compares).

Panels name metrics of exporters/metrics.py, so a renamed metric fails here, not in front of an operator. Prometheus
naming. Model:
https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exporters.metric import Metric
from exporters.metrics import METRICS

_BY_NAME = {m.name: m for m in METRICS}
#: The nodes that are chosen above the panels.
_NODES = '{instance=~"$instance"}'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"s": "s", "By": "bytes", "1": "percentunit"}
#: Of counters, which are shown as rates.
_RATES = {"s": "percentunit"}
#: What identifies a queue but for its partition: queues of one name in two clusters are two.
_QUEUE = ("messaging_system", "tickscope_cluster", "messaging_destination_name", "messaging_consumer_group_name")
_LEFT_OUT = " Partitions with unknown values (their server is down) are left out of the sum."
_WIDTH, _HEIGHT = 12, 8

#: (row title, [(panel title, metric, labels to group by, quantile for histograms)])
_ROWS: tuple[tuple[str, tuple[tuple[str, str, tuple[str, ...], float], ...]], ...] = (
    (
        "Findings and losses",
        (
            ("Findings by cause", "tickscope.findings.by_cause", ("tickscope_cause",), 0),
            ("Findings by symptom", "tickscope.findings", ("tickscope_symptom", "tickscope_severity"), 0),
            ("Records lost", "tickscope.losses.by_source", ("tickscope_stage", "tickscope_source"), 0),
            ("Losses noticed", "tickscope.losses.reports", ("tickscope_stage",), 0),
        ),
    ),
    (
        "Limiters and queues",
        (
            (
                "Decisions",
                "tickscope.limiter.decisions.by_limiter",
                ("rate_limiting_limiter_id", "rate_limiting_result"),
                0,
            ),
            ("Decision time, p99", "tickscope.limiter.decision.duration", ("rate_limiting_limiter_id",), 0.99),
            ("Admitted too many after a jump", "tickscope.limiter.over_admitted", ("direction",), 0),
            ("Wrongly refused after a jump", "tickscope.limiter.wrongly_refused", ("direction",), 0),
            ("Queue lag", "tickscope.queue.lag", _QUEUE, 0),
            ("Oldest undelivered", "tickscope.queue.oldest_undelivered", _QUEUE, 0),
        ),
    ),
    (
        "Clocks",
        (
            ("Clock changes", "tickscope.clock.changes.by_process", ("tickscope_kind", "process_command"), 0),
            ("Drift against MONOTONIC_RAW", "tickscope.clock.drift", (), 0),
            ("Kernel's error bound", "tickscope.clock.max_error", (), 0),
            ("Frequency correction", "tickscope.clock.frequency", (), 0),
            ("Offset", "ntp.offset", ("tickscope_daemon",), 0),
            ("Leap indicator (3: not synchronised)", "ntp.leap_indicator", (), 0),
            ("Jumps of the wall clock", "ntp.jump.count", ("direction",), 0),
            ("Size of jumps, p99", "ntp.jump.size", ("direction",), 0.99),
            ("Pending re-anchorings", "tickscope.clock.pending_reanchorings", (), 0),
            ("Synchronised", "ntp.sync_status", (), 0),
            ("Notices not delivered", "tickscope.clock.notices.failed", ("tickscope_channel",), 0),
            ("Subscribers and notices dropped", "tickscope.clock.notices.dropped", ("tickscope_channel",), 0),
        ),
    ),
    (
        "Network and system calls",
        (
            ("RTT, p99", "tickscope.tcp.rtt", ("process_command", "network_role"), 0.99),
            ("Retransmits", "tickscope.tcp.retransmits.by_process", ("process_command", "tickscope_kind"), 0),
            ("TLS handshake, p99", "tickscope.tls.handshake.duration", ("process_command",), 0.99),
            ("Connections that found the accept queue full", "tickscope.socket.accept.overflows", (), 0),
            ("TLS handshakes", "tickscope.tls.handshakes", ("tickscope_result", "network_role"), 0),
            ("Slow system calls", "tickscope.syscall.slow.by_process", ("process_command", "syscall_name"), 0),
        ),
    ),
    (
        "The agent itself",
        (
            ("Processor time", "tickscope.process.cpu", ("tickscope_role",), 0),
            ("Resident memory", "tickscope.process.memory", ("tickscope_role",), 0),
            ("Store on disk", "tickscope.store.size", (), 0),
            ("Samples on the metrics page", "tickscope.metrics.samples", (), 0),
        ),
    ),
)


def _is_sum(metric: Metric) -> bool:
    """Whether it is a gauge that counts messages, hence is added up over partitions."""
    return metric.instrument == "gauge" and metric.unit == "{message}"


def expression(metric: Metric, labels: tuple[str, ...], quantile: float) -> str:
    """PromQL of one panel. Each node has its own lines: the largest value of all would hide a node that is not
    synchronised. Partitions of a queue are added up where they count messages.
    """
    by, name = ", ".join(("instance", *labels)), metric.prometheus
    if metric.instrument == "counter":
        return f"sum by ({by}) (rate({name}{_NODES}[$__rate_interval]))"
    if metric.instrument == "histogram":
        return f"histogram_quantile({quantile}, sum by ({by}, le) (rate({name}_bucket{_NODES}[$__rate_interval])))"
    return f"{'sum' if _is_sum(metric) else 'max'} by ({by}) ({name}{_NODES})"


def dashboard() -> dict[str, Any]:
    """The whole dashboard. Raises KeyError for a metric that does not exist."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        y += 1
        for i, (name, metric_name, labels, quantile) in enumerate(row):
            metric = _BY_NAME[metric_name]
            legend = " ".join(f"{{{{{label}}}}}" for label in ("instance", *labels))
            unit = (
                _RATES.get(metric.unit, "cps") if metric.instrument == "counter" else _UNITS.get(metric.unit, "short")
            )
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "timeseries",
                    "title": name,
                    "description": metric.description + (_LEFT_OUT if _is_sum(metric) else ""),
                    "datasource": _SOURCE,
                    "gridPos": {"x": _WIDTH * (i % 2), "y": y + _HEIGHT * (i // 2), "w": _WIDTH, "h": _HEIGHT},
                    "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                    "targets": [
                        {
                            "refId": "A",
                            "datasource": _SOURCE,
                            "expr": expression(metric, labels, quantile),
                            "legendFormat": legend,
                        }
                    ],
                }
            )
        y += _HEIGHT * -(-len(row) // 2)
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "instance",
            "type": "query",
            "label": "Node",
            "datasource": _SOURCE,
            "query": "label_values(tickscope_build_info, instance)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "tickscope",
        "uid": "tickscope-overview",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "tags": ["tickscope"],
        "templating": {"list": variables},
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".json").write_text(text())
