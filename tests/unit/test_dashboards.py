"""The committed dashboard is what its code makes, and every label a panel groups by is one that the metric has."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dashboards import overview
from exporters.metrics import METRICS


def test_committed_json_is_current() -> None:
    assert Path(overview.__file__).with_suffix(".json").read_text() == overview.text()


@pytest.mark.parametrize(
    "panel", [p for p in overview.dashboard()["panels"] if p["type"] != "row"], ids=lambda p: str(p["title"])
)
def test_panels_name_series_that_exist(panel: dict[str, object]) -> None:
    expression = str(panel["targets"][0]["expr"])  # type: ignore[index]
    metrics = [m for m in METRICS if re.search(rf"\b{m.prometheus}(_bucket)?\b", expression)]
    assert metrics
    labels = {
        re.sub(r"\W", "_", name)
        for m in metrics
        for name in (*map(m.attribute, m.columns), *dict(m.labels), *m.observed)
    }
    grouped = re.search(r"by \(([^)]*)\)", expression)
    assert grouped is not None
    assert {"instance"} <= set(grouped.group(1).split(", ")) <= labels | {"instance", "le"}


def _expression(title: str) -> str:
    (panel,) = (p for p in overview.dashboard()["panels"] if p["title"] == title)
    return str(panel["targets"][0]["expr"]).replace("$instance", ".*").replace("$__rate_interval", "1m")


_LAG = 'tickscope_queue_lag{messaging_system="kafka",messaging_destination_name="orders"'
_GROUP = 'messaging_destination_name="orders",messaging_system="kafka"'


@pytest.mark.parametrize(
    ("title", "given", "shown"),
    [
        (
            "Synchronised",
            {'ntp_sync_status{instance="a"}': 1, 'ntp_sync_status{instance="b"}': 0},
            {'{instance="a"}': 1, '{instance="b"}': 0},
        ),
        (
            "Queue lag",
            {
                f'{_LAG},instance="a",tickscope_cluster="east",messaging_destination_partition_id="0"}}': 5,
                f'{_LAG},instance="a",tickscope_cluster="east",messaging_destination_partition_id="1"}}': 7,
                f'{_LAG},instance="a",tickscope_cluster="west",messaging_destination_partition_id="0"}}': 1,
                f'{_LAG},instance="b",tickscope_cluster="east",messaging_destination_partition_id="0"}}': 5,
            },
            {
                f'{{instance="a",{_GROUP},tickscope_cluster="east"}}': 12,
                f'{{instance="a",{_GROUP},tickscope_cluster="west"}}': 1,
                f'{{instance="b",{_GROUP},tickscope_cluster="east"}}': 5,
            },
        ),
    ],
)
def test_a_panel_has_a_line_for_each_node_and_queue(
    tmp_path: Path, title: str, given: dict[str, float], shown: dict[str, float]
) -> None:
    """By Prometheus' own evaluation: the largest value of all nodes hid one that was not synchronised."""
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value}x9"} for name, value in given.items()],
        "promql_expr_test": [
            {
                "expr": _expression(title),
                "eval_time": "1m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in shown.items()],
            }
        ],
    }
    file = tmp_path / "panel_test.yml"
    file.write_text(json.dumps({"evaluation_interval": "15s", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rates_have_units_of_their_own() -> None:
    units = {p["title"]: p["fieldConfig"]["defaults"]["unit"] for p in overview.dashboard()["panels"] if "targets" in p}
    assert {t: units[t] for t in ("Processor time", "Records lost", "Queue lag", "Oldest undelivered")} == {
        "Processor time": "percentunit",
        "Records lost": "cps",
        "Queue lag": "short",
        "Oldest undelivered": "s",
    }
