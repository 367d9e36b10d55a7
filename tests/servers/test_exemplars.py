"""A real Prometheus stores the spans that were sent as exemplars of histograms."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from agent.batch import Batch, make
from agent.common.clocks import boot_ns
from exporters.aggregate import MetricStore
from exporters.process_resource import ProcessResources
from exporters.prometheus import PrometheusEndpoint
from exporters.spans import SpanEncoder
from tests.patience import until
from tests.servers.otlp_load import to_wall
from tests.servers.prometheus import Prometheus


def test_prometheus_stores_the_trace_of_each_bucket(tmp_path: Path) -> None:
    own, store = {"service.name": "tickscope"}, MetricStore()
    slow_ns = [150_000_000, 700_000_000]
    rows = make("tls_handshake", 2, t_ns=boot_ns(), pid=7, comm=b"curl", role=0, result=0, duration_ns=slow_ns).rows
    store.offer(Batch("tls_handshake", rows))
    sent = SpanEncoder("boot", to_wall, ProcessResources(own), store).roots("tls_handshake", rows)
    traces = [Span.FromString(one.span).trace_id.hex() for one in sent]
    page = PrometheusEndpoint(("127.0.0.1", 0), store, own)
    try:
        with Prometheus(tmp_path, {"web1": page.port}) as server:
            name = "tickscope_tls_handshake_duration_seconds_bucket"
            window = {"start": str(time.time() - 600), "end": str(time.time() + 600)}

            def stored() -> dict[str, tuple[str, float]]:
                found = server.get("query_exemplars", query=name, **window)
                return {
                    one["seriesLabels"]["le"]: (exemplar["labels"]["trace_id"], float(exemplar["value"]))
                    for one in found
                    for exemplar in one["exemplars"]
                }

            until(lambda: server.value("up") == 1)
            until(lambda: len(stored()) == 2)
            time.sleep(2)  # further scrapes: the same exemplars are no new ones
            assert sorted(stored().values(), key=lambda one: one[1]) == [
                (trace, pytest.approx(ns / 1e9)) for trace, ns in zip(traces, slow_ns, strict=True)
            ]
    finally:
        page.close()
