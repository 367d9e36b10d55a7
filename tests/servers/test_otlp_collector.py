"""The exporter against a real OpenTelemetry Collector (tests/servers/collector): exact counts in its file exporter's
JSON.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.batch import make
from exporters.aggregate import MetricStore
from tests.patience import listening, until
from tests.ports import free_port
from tests.servers.otlp_load import (
    BOOT_ID,
    CALLS,
    DECISIONS,
    RETRANSMITS,
    RTT_ROWS,
    SPANS,
    boot_ns,
    exporter,
    spans_only,
    workload,
)

_HERE = Path(__file__).parent / "collector"
_NO_GO = 3


@dataclass
class Collector:
    http: int
    grpc: int
    file: Path

    def lines(self) -> list[dict[str, Any]]:
        """The complete documents in the file; the last line may be half-written."""
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1] if line]

    def spans(self) -> list[dict[str, Any]]:
        return [
            s for doc in self.lines() for r in doc.get("resourceSpans", []) for g in r["scopeSpans"] for s in g["spans"]
        ]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return [
            m
            for doc in self.lines()
            for r in doc.get("resourceMetrics", [])
            for g in r["scopeMetrics"]
            for m in g["metrics"]
            if m["name"] == name
        ]

    def exemplars(self, name: str) -> list[dict[str, Any]]:
        points = [p for m in self.metrics(name) for p in m["histogram"]["dataPoints"]]
        return [one for p in points for one in p.get("exemplars", [])]

    def records(self) -> list[dict[str, Any]]:
        return [
            x
            for doc in self.lines()
            for r in doc.get("resourceLogs", [])
            for g in r["scopeLogs"]
            for x in g["logRecords"]
        ]

    def resources(self) -> list[dict[str, str]]:
        """Of spans."""
        found = [r["resource"]["attributes"] for doc in self.lines() for r in doc.get("resourceSpans", [])]
        return [{a["key"]: str(next(iter(a["value"].values()))) for a in one} for one in found]


@pytest.fixture(scope="module")
def binary() -> str:
    """The collector's path, built at the first use: some minutes, once."""
    built = subprocess.run([_HERE / "build.sh"], capture_output=True, text=True, check=False)
    if built.returncode == _NO_GO:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stderr[-4000:]
    return built.stdout.strip()


@contextmanager
def running(binary: str, folder: Path, ports: tuple[int, int] | None = None) -> Iterator[Collector]:
    http, grpc = ports or (free_port(), free_port())
    collector = Collector(http, grpc, folder / "out.json")
    config = (_HERE / "config.yaml.in").read_text(encoding="utf-8")
    for key, value in (("HTTP", http), ("GRPC", grpc), ("FILE", collector.file)):
        config = config.replace(f"@{key}@", str(value))
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary, "--config", str(folder / "config.yaml")], stdout=log, stderr=log)
    try:
        listening(http, grpc, process=process, log=folder / "log")
        yield collector
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_counts_in_the_collectors_file(binary: str, tmp_path: Path, protocol: str, compression: str) -> None:
    with running(binary, tmp_path) as collector:
        store = MetricStore()
        sink = exporter(
            f"http://127.0.0.1:{collector.grpc if protocol == 'grpc' else collector.http}",
            store,
            protocol=protocol,
            compression=compression,
        )
        for batch in workload(boot_ns()):
            store.offer(batch)
            sink.offer(batch)
        until(
            lambda: len(collector.spans()) >= SPANS and bool(collector.metrics("tickscope.tcp.rtt")),
        )
        finding = make(
            "finding", 1, t_ns=boot_ns(), finding_id=b"open", state=0, severity=1, sentence=b"it goes on", cause=b"tls"
        )
        sink.offer(finding)
        until(lambda: len(collector.records()) == 3)  # the workload has a finding that closed
        *closed, record = collector.records()
        assert [one["eventName"] for one in closed] == ["tickscope.finding.opened", "tickscope.finding.closed"]
        assert (record["body"], record["severityText"]) == ({"stringValue": "it goes on"}, "WARN")
        sink.close()
        assert (sink.state()["sent_spans"], sink.losses()) == (SPANS, dict.fromkeys(sink.losses(), 0))
        spans = collector.spans()
        assert len(spans) == len({s["spanId"] for s in spans}) == SPANS
        decisions = {s["spanId"]: s for s in spans if s["name"].startswith("decision ")}
        assert len(decisions) == DECISIONS
        calls = [s for s in spans if s["name"] == "syscall fsync"]
        assert len(calls) == CALLS
        for call in calls:
            assert decisions[call["parentSpanId"]]["traceId"] == call["traceId"]
            assert int(call["endTimeUnixNano"]) - int(call["startTimeUnixNano"]) == 11_000_003
        assert {r["host.boot.id"] for r in collector.resources()} == {BOOT_ID}
        services = {r["service.name"] for r in collector.resources()}
        assert services == {"tickscope", "api", "curl", "chronyd"}
        finding = next(s for s in spans if s["name"] == "finding clock_step")
        evidence = [s for s in spans if s["name"] == "clock step"]
        assert {(s["traceId"], s["parentSpanId"]) for s in evidence} == {(finding["traceId"], finding["spanId"])}
        rtt = collector.metrics("tickscope.tcp.rtt")[0]
        point = rtt["histogram"]["dataPoints"][0]
        counted = {
            bound: int(n) for bound, n in zip(point["explicitBounds"], point["bucketCounts"], strict=False) if n != "0"
        }
        assert (rtt["unit"], counted) == ("s", {0.000256: 2 * RTT_ROWS, 0.001024: RTT_ROWS})
        assert point["count"] == str(3 * RTT_ROWS)
        handshakes = {(s["traceId"], s["spanId"]) for s in spans if s["name"] == "tls handshake"}
        until(lambda: bool(collector.exemplars("tickscope.tls.handshake.duration")))
        exemplars = collector.exemplars("tickscope.tls.handshake.duration")
        assert {one["asDouble"] for one in exemplars} == {0.150000001}
        assert {(one["traceId"], one["spanId"]) for one in exemplars} <= handshakes
        sums = collector.metrics("tickscope.tcp.retransmits")[0]["sum"]
        assert [p["asInt"] for p in sums["dataPoints"]] == [str(RETRANSMITS), "0", "0", "0"]
        assert sums["isMonotonic"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_comes_late_and_goes_away_gets_all(binary: str, tmp_path: Path, protocol: str) -> None:
    ports = (free_port(), free_port())
    sink = spans_only(
        f"http://127.0.0.1:{ports[1] if protocol == 'grpc' else ports[0]}", protocol=protocol, timeout_s=1
    )
    sink.offer(make("clock_change", 19, t_ns=boot_ns(), kind=0))
    until(lambda: sink.state()["state"] != "ok")
    (tmp_path / "one").mkdir()
    with running(binary, tmp_path / "one", ports) as first:
        until(lambda: len(first.spans()) == 19, 90)
    sink.offer(make("clock_change", 23, t_ns=boot_ns(), kind=0))
    (tmp_path / "two").mkdir()
    with running(binary, tmp_path / "two", ports) as second:
        until(lambda: len(second.spans()) == 23, 90)
        sink.close()  # its last points need a collector too
    assert sink.state()["sent_spans"] == 19 + 23
    assert sink.losses() == dict.fromkeys(sink.losses(), 0)
