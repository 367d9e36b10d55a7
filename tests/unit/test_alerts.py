"""The alert rules: committed as made, sound to promtool, and each fires on what it is for and not before."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from dashboards import alerts
from exporters.metrics import METRICS

_FILE = Path(alerts.__file__).with_suffix(".yaml")

#: For each rule: the series that sets it off at 10 minutes, as promtool writes values, and the labels of the alert.
_CASES = {
    "TickscopeDown": ('up{job="tickscope"}', "1x9 0x30", {"job": "tickscope"}),
    "TickscopeFinding": (
        'tickscope_findings_total{tickscope_symptom="refusals",tickscope_severity="alarm"}',
        "0x9 1x30",
        {"tickscope_symptom": "refusals"},
    ),
    "TickscopeClockJump": ('ntp_jump_count_total{direction="backward"}', "0x9 1x30", {"direction": "backward"}),
    "TickscopeClockNotSynchronised": ("ntp_sync_status", "1x9 0x30", {}),
    "TickscopeClockFarOff": ('ntp_offset_seconds{tickscope_daemon="chrony"}', "0x9 -0.2x30", {}),
    "TickscopeNotReanchored": ("tickscope_clock_pending_reanchorings", "0x9 2x30", {}),
    "TickscopeAcceptOverflow": ("tickscope_socket_accept_overflows_total", "0x9 1x30", {}),
    "TickscopeTlsHandshakesFail": (
        'tickscope_tls_handshakes_total{tickscope_result="failed",network_role="client"}',
        "0x9 1+1x30",
        {},
    ),
    "TickscopeLosesRecords": (
        'tickscope_losses_reports_total{tickscope_stage="ring"}',
        "0x9 1x30",
        {"tickscope_stage": "ring"},
    ),
    "TickscopeProbeNotAttached": (
        'tickscope_probe_state{tickscope_probe="tls",tickscope_state="degraded"}',
        "0x9 1x30",
        {"tickscope_probe": "tls"},
    ),
    "TickscopeStoreDegraded": (
        'tickscope_store_state{tickscope_state="degraded"}',
        "0x9 1x30",
        {"tickscope_state": "degraded"},
    ),
    "TickscopeMetricsOverflow": ("tickscope_metrics_overflowed_total", "0x9 1+1x30", {}),
}
_MINUTES = {"": 0, "1m": 1, "2m": 2, "5m": 5, "10m": 10, "15m": 15}


def test_committed_rules_are_current() -> None:
    assert _FILE.read_text() == alerts.text()


def test_promtool_reads_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(_FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alerts.RULES)} rules found" in done.stdout


def test_each_rule_fires_on_what_it_is_for_and_not_before(tmp_path: Path) -> None:
    assert set(_CASES) == {r.alert for r in alerts.RULES}
    groups = []
    for rule in alerts.RULES:
        series, values, labels = _CASES[rule.alert]
        instance = "{" if "{" not in series else series[series.index("{") : -1] + ","
        name = series.partition("{")[0]
        annotations = {
            "summary": rule.summary.replace("{{ $labels.instance }}", "web1")
            .replace("{{ $value }}", "2")
            .replace("{{ $value | humanizeDuration }}", "200ms"),
            "description": rule.todo,
        }
        for label, value in labels.items():
            annotations["summary"] = annotations["summary"].replace(f"{{{{ $labels.{label} }}}}", value)
        fired = {
            "exp_labels": {"severity": rule.severity, "instance": "web1", **labels},
            "exp_annotations": annotations,
        }
        after = 11 + _MINUTES[rule.lasts]
        groups.append(
            {
                "interval": "1m",
                "input_series": [{"series": f'{name}{instance}instance="web1"}}', "values": values}],
                "alert_rule_test": [
                    {"eval_time": "9m", "alertname": rule.alert, "exp_alerts": []},
                    {"eval_time": f"{after}m", "alertname": rule.alert, "exp_alerts": [fired]},
                ],
            }
        )
    file = tmp_path / "rules_test.yml"
    file.write_text(json.dumps({"rule_files": [str(_FILE)], "evaluation_interval": "1m", "tests": groups}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", alerts.RULES, ids=lambda r: str(r.alert))
def test_what_increases_starts_at_0(rule: alerts.Rule) -> None:
    observed_from_0 = {"tickscope.metrics.overflowed"}
    for name in re.findall(r"increase\((\w+)", rule.expression):
        metric = next(m for m in METRICS if m.prometheus == name)
        assert metric.bounded or metric.name in observed_from_0
