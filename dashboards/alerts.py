"""Alert rules for Prometheus, as code: ``python -m dashboards.alerts`` writes dashboards/alerts.yaml (committed; a test
compares).

Rules name metrics of exporters/metrics.py, so a renamed metric fails here. All counters below ``increase()`` start at
0, so each rule sees the first event. JSON is YAML: what is written is what promtool and Prometheus read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from exporters.metrics import METRICS

#: Names in Prometheus, by our own.
_NAME = {m.name: m.prometheus for m in METRICS}


class Rule(NamedTuple):
    """summary, todo: the text of the alert. lasts: how long it holds before it fires; "" at once."""

    alert: str
    expression: str
    severity: str
    summary: str
    todo: str
    lasts: str = ""


def _more(name: str, by: str, selector: str = "", within: str = "5m") -> str:
    """Where a counter went up."""
    return f"sum by ({by}) (increase({_NAME[name]}{selector}[{within}])) > 0"


RULES = (
    Rule(
        "TickscopeDown",
        'up{job=~".*tickscope.*"} == 0',
        "warning",
        "Prometheus cannot read the metrics page of {{ $labels.instance }}: alerts from this page cannot fire",
        "tickscope status; systemctl status tickscope",
        "5m",
    ),
    Rule(
        "TickscopeFinding",
        _more("tickscope.findings", "instance, tickscope_symptom", '{tickscope_severity="alarm"}'),
        "warning",
        "{{ $labels.tickscope_symptom }} on {{ $labels.instance }} (finding of tickscope)",
        "tickscope findings; tickscope explain last",
    ),
    Rule(
        "TickscopeClockJump",
        _more("ntp.jump.count", "instance, direction"),
        "warning",
        "the wall clock of {{ $labels.instance }} jumped {{ $labels.direction }}",
        "tickscope explain last; by whom: tickscope clock history; effect: tickscope limiters replay --jump last",
    ),
    Rule(
        "TickscopeClockNotSynchronised",
        f"{_NAME['ntp.sync_status']} == 0",
        "warning",
        "no time daemon synchronises the clock of {{ $labels.instance }}",
        "tickscope clock",
        "10m",
    ),
    Rule(
        "TickscopeClockFarOff",
        f"max by (instance) (abs({_NAME['ntp.offset']})) > 0.128",
        "warning",
        "the wall clock of {{ $labels.instance }} is believed to be off by {{ $value | humanizeDuration }}",
        "tickscope clock",
        "2m",
    ),
    Rule(
        "TickscopeNotReanchored",
        f"{_NAME['tickscope.clock.pending_reanchorings']} > 0",
        "warning",
        "{{ $value }} notices of clock jumps on {{ $labels.instance }} are not acknowledged: limiters may still count"
        " by the old time",
        "see which programs: tickscope clock",
        "1m",
    ),
    Rule(
        "TickscopeAcceptOverflow",
        _more("tickscope.socket.accept.overflows", "instance"),
        "warning",
        "connections met a full accept queue on {{ $labels.instance }}",
        'tickscope query socket_queue --where "kind = \'accept\' AND queue >= \\"limit\\""',
    ),
    Rule(
        "TickscopeTlsHandshakesFail",
        _more("tickscope.tls.handshakes", "instance", '{tickscope_result="failed"}'),
        "info",
        "TLS handshakes fail on {{ $labels.instance }}",
        "tickscope query tls_handshake --where \"result = 'failed'\"",
        "5m",
    ),
    Rule(
        "TickscopeLosesRecords",
        _more("tickscope.losses.reports", "instance, tickscope_stage"),
        "warning",
        "tickscope on {{ $labels.instance }} lost records ({{ $labels.tickscope_stage }}): findings may be missing or"
        " incomplete",
        "tickscope status; tickscope query loss",
    ),
    Rule(
        "TickscopeProbeNotAttached",
        "max by (instance, tickscope_probe)"
        f' ({_NAME["tickscope.probe.state"]}{{tickscope_state=~"degraded|unavailable"}}) == 1',
        "warning",
        "the probe {{ $labels.tickscope_probe }} misses events on {{ $labels.instance }}",
        "see the reason and the remedy: tickscope probes",
        "1m",
    ),
    Rule(
        "TickscopeStoreDegraded",
        f'{_NAME["tickscope.store.state"]}{{tickscope_state="degraded"}} == 1',
        "warning",
        "tickscope on {{ $labels.instance }} cannot write its store: rows may be lost",
        "see the reason and the remedy: tickscope status",
        "1m",
    ),
    Rule(
        "TickscopeMetricsOverflow",
        _more("tickscope.metrics.overflowed", "instance", within="15m"),
        "info",
        "the metrics page of {{ $labels.instance }} has too many label sets: some are summed under"
        " otel_metric_overflow",
        "in tickscope.yaml, metrics: {samples: N} or {detail: full}",
        "15m",
    ),
)


def rules() -> dict[str, Any]:
    return {
        "groups": [
            {
                "name": "tickscope",
                "rules": [
                    {
                        "alert": r.alert,
                        "expr": r.expression,
                        **({"for": r.lasts} if r.lasts else {}),
                        "labels": {"severity": r.severity},
                        "annotations": {"summary": r.summary, "description": r.todo},
                    }
                    for r in RULES
                ],
            }
        ]
    }


def text() -> str:
    return "# Made by python -m dashboards.alerts\n" + json.dumps(rules(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".yaml").write_text(text())
