"""The committed dashboards are what their code makes, and every label a panel groups by is one that the metric has.
tests/servers/test_boards.py has the queries answered.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import boards
from dashboards.boards import BOARDS, Panel, dashboard
from exporters.metrics import METRICS

PANELS = [(name, panel) for name in BOARDS for panel in dashboard(name)["panels"] if panel["type"] != "row"]
LINES = [(name, p) for name, b in BOARDS.items() for row in b.rows.values() for p in row if isinstance(p, Panel)]
#: In no panel: each is in another one, with fewer labels or as a rate, or is a detail for queries of one's own.
NOT_SHOWN = {
    "ntp.daemon.root_delay",
    "ntp.daemon.root_dispersion",
    "ntp.daemon.skew",
    "tickscope.clock.changes",
    "tickscope.clock.notices.acknowledged",
    "tickscope.clock.offset.error",
    "tickscope.clock.status",
    "tickscope.clock.tai_offset",
    "tickscope.limiter.decisions",
    "tickscope.limiter.over_admitted",
    "tickscope.limiter.wrongly_refused",
    "tickscope.losses",
    "tickscope.probe.hits",
    "tickscope.probe.run_time",
    "tickscope.queue.messages.checked",
    "tickscope.queue.messages.checked.by_queue",
    "tickscope.queue.messages.duplicates",
    "tickscope.queue.messages.out_of_order",
    "tickscope.socket.queue.drops.by_queue",
    "tickscope.store.segments",
    "tickscope.syscall.duration",
    "tickscope.syscall.errors",
    "tickscope.syscall.errors.by_call",
    "tickscope.syscall.run_queue",
    "tickscope.syscall.slow",
    "tickscope.tcp.connect.duration",
    "tickscope.tcp.resets",
    "tickscope.tcp.retransmits",
}


@pytest.mark.parametrize("name", BOARDS)
def test_committed_json_is_current(name: str) -> None:
    assert Path(boards.__file__).with_name(f"{name}.json").read_text() == boards.text(name)


@pytest.mark.parametrize(("board", "panel"), LINES, ids=[f"{b}: {p.title}" for b, p in LINES])
def test_panels_name_series_that_exist(board: str, panel: Panel) -> None:
    metric = next(m for m in METRICS if m.name == panel.metric)
    assert {*panel.labels} <= boards.labels_of(metric)


def test_every_metric_is_in_a_panel_or_is_left_out_on_purpose() -> None:
    shown = {panel.metric for _, panel in LINES} | {"tickscope.finding.open"}
    assert {m.name for m in METRICS} - shown == NOT_SHOWN


@pytest.mark.parametrize("name", BOARDS)
def test_the_layout_is_sound(name: str) -> None:
    """Panels have ids of their own, do not overlap, and fit on the 24 columns of a page."""
    made = dashboard(name)
    places: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & places, panel["title"]
        places |= cells
    assert len({p["id"] for p in made["panels"]}) == len(made["panels"])


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{b}: {p['title']}" for b, p in PANELS])
def test_a_panel_obeys_the_choice_of_nodes_and_leads_to_a_command(board: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert 'instance=~"$instance"' in target["expr"]
    ((link),) = panel["links"]
    assert re.fullmatch("On the node: tickscope [a-z ]+", link["title"]) and link["url"].startswith("${docs}/")
    if panel["type"] == "timeseries":
        assert "tickscope explain" in panel["fieldConfig"]["defaults"]["links"][0]["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_marks_show_no_text_of_others(name: str) -> None:
    """Grafana shows them as HTML: names of the catalogue, ids and directions only."""
    marks = dashboard(name)["annotations"]["list"]
    labels = {label for m in marks for label in re.findall(r"\{\{(\w+)\}\}", m["titleFormat"] + m["textFormat"])}
    assert labels == {"direction", "tickscope_symptom", "tickscope_cause", "tickscope_finding_id"}


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where the one has something that the other has not."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield from lost(value, kept[key], f"{path}.{key}") if key in kept else (f"{path}.{key}",)
    elif isinstance(given, list):
        for n, (one, other) in enumerate(zip_longest(given, kept)):
            yield from lost(one, other, f"{path}[{n}]")
    elif given != kept:
        yield path


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_types_know_every_field(name: str) -> None:
    """They are generated from Grafana's schema. A field that they do not know does not come back."""
    register_default_plugins()  # the types of panels and queries
    made = dashboard(name)
    assert list(lost(made, json.loads(JSONEncoder().encode(Dashboard.from_json(made))))) == []
    made["panels"][1]["targets"][0]["exprs"] = made["templating"]["list"][1]["multy"] = ""
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(made)))
    assert list(lost(made, back)) == [".templating.list[1].multy", ".panels[1].targets[0].exprs"]


def _expression(board: str, title: str) -> str:
    (panel,) = (p for p in dashboard(board)["panels"] if p["title"] == title)
    expression = str(panel["targets"][0]["expr"]).replace("$__rate_interval", "1m")
    return re.sub(r"\$(instance|process|limiter|queue)\b", ".*", expression)


_LAG = 'tickscope_queue_lag{messaging_system="kafka",messaging_destination_name="orders"'
_GROUP = 'messaging_destination_name="orders",messaging_system="kafka"'


@pytest.mark.parametrize(
    ("board", "title", "given", "shown"),
    [
        (
            "overview",
            "Synchronised",
            {'ntp_sync_status{instance="a"}': 1, 'ntp_sync_status{instance="b"}': 0},
            {'ntp_sync_status{instance="a"}': 1, 'ntp_sync_status{instance="b"}': 0},
        ),
        (
            "overview",
            "Clocks not synchronised",
            {'ntp_sync_status{instance="a"}': 1, 'ntp_sync_status{instance="b"}': 0},
            {"{}": 1},
        ),
        (
            "clocks",
            "Drift against MONOTONIC_RAW",
            {'tickscope_clock_drift_ratio{instance="a"}': 1e-6, 'tickscope_clock_drift_ratio{instance="b"}': -5e-5},
            {'tickscope_clock_drift_ratio{instance="a"}': 1e-6, 'tickscope_clock_drift_ratio{instance="b"}': -5e-5},
        ),
        (
            "queues",
            "Time until full, or deleted unread",
            {
                f'tickscope_queue_limit_in_seconds{{{_GROUP},instance="a",messaging_destination_partition_id="0"}}': 9,
                f'tickscope_queue_limit_in_seconds{{{_GROUP},instance="a",messaging_destination_partition_id="1"}}': 5,
            },
            {f'{{instance="a",{_GROUP}}}': 5},
        ),
        (
            "queues",
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
    tmp_path: Path, board: str, title: str, given: dict[str, float], shown: dict[str, float]
) -> None:
    """By Prometheus' own evaluation. The largest value of all hid a node that is not synchronised, a drift below 0, and
    the partition that is full first.
    """
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value}x9"} for name, value in given.items()],
        "promql_expr_test": [
            {
                "expr": _expression(board, title),
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
    units = {(b, p["title"]): p["fieldConfig"]["defaults"]["unit"] for b, p in PANELS if p["type"] == "timeseries"}
    assert units["agent", "Processor time"] == "percentunit"
    assert units["agent", "Records lost"] == "cps"
    assert units["queues", "Queue lag"] == "short"
    assert units["queues", "Oldest undelivered"] == "s"
