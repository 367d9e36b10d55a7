"""The agent's own metrics, from a real process and a status as it is."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from exporters.aggregate import MetricStore
from exporters.exposition import render
from exporters.observed import EVERY_NS, StatusMetrics

_GONE = 2**22 + 1


def _status() -> dict[str, Any]:
    return {
        "processes": [{"pid": os.getpid(), "role": "agent"}, {"pid": _GONE, "role": "helper"}],
        "probes": [{"probe": "tls", "state": "degraded"}],
        "store": {"state": "ok", "bytes": 4096, "segments": 3, "waiting_rows": 5, "dropped_rows": 0},
        "export": {
            "otlp": {"sent_spans": 11, "sent_logs": 1, "sent_points": 13, "unsampled": 17},
            "slack": {"state": "down", "sent": 19, "retries": 23, "dropped": 29},
        },
    }


def test_what_the_page_reports_of_the_agent() -> None:
    store, samples = MetricStore(), []

    def check() -> dict[str, Any]:
        samples.append(1)
        return _status()

    observer = StatusMetrics(
        store, "1.2.3", check, SimpleNamespace(requests={200: 7, 421: 2}, dropped={"share": 3, "timeout": 0})
    )
    for now_ns in (1, 2, EVERY_NS, 1 + EVERY_NS):
        observer(now_ns)
    assert len(samples) == 2
    for metric, series in store.collect():
        if not metric.table:
            assert {name for one in series for name, _ in one.attributes} == {*metric.observed}, metric.name
    lines = render(store.collect(), {}).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    expected = {
        'tickscope_probe_state{tickscope_probe="tls",tickscope_state="degraded"}': "1",
        'tickscope_probe_state{tickscope_probe="tls",tickscope_state="attached"}': "0",
        'tickscope_store_state{tickscope_state="ok"}': "1",
        "tickscope_store_size_bytes": "4096",
        "tickscope_store_waiting": "5",
        'tickscope_otlp_sent_total{tickscope_signal="points"}': "13",
        "tickscope_otlp_unsampled_total": "17",
        'tickscope_notify_sent_total{tickscope_receiver="slack"}': "19",
        'tickscope_notify_retries_total{tickscope_receiver="slack"}': "23",
        'tickscope_notify_dropped_total{tickscope_receiver="slack"}': "29",
        'tickscope_notify_state{tickscope_receiver="slack",tickscope_state="down"}': "1",
        'tickscope_notify_state{tickscope_receiver="slack",tickscope_state="ok"}': "0",
        'tickscope_page_requests_total{http_response_status_code="421"}': "2",
        'tickscope_page_dropped_total{tickscope_reason="share"}': "3",
    }
    assert expected.items() <= values.items()
    assert float(values['tickscope_process_cpu_seconds_total{tickscope_role="agent"}']) > 0
    assert float(values['tickscope_process_memory_bytes{tickscope_role="agent"}']) > 1 << 20
    assert not any('role="helper"' in key for key in values)
    assert any(line.startswith("tickscope_build_info{") and 'version="1.2.3"' in line for line in lines)
