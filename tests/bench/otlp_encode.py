"""Cost of encoding spans: ``python -m tests.bench.otlp_encode [ROWS]``.

Interleaved pairs, medians: the exporter's encoder (rows -> request bytes) against the same spans built field by field
as opentelemetry.proto messages, and against the OpenTelemetry SDK with the exporter's own encode_spans.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from agent.batch import make
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.process_resource import ProcessResources
from exporters.protobuf_pieces import Envelope, any_value
from exporters.span_cells import attribute_of, cells_of
from exporters.spans import SpanEncoder

_PAIRS = 7
_WALL = 1_700_000_000 * 10**9


def rows(n: int) -> np.ndarray:
    """Slow calls of a handful of processes: 17 columns with values."""
    which = np.arange(n)
    return make(
        "slow_syscall",
        n,
        t_ns=10**12 + which * 1_000_003,
        pid=1000 + which % 7,
        tid=1000 + which % 31,
        proc_start_ns=5,
        comm=b"redis-server",
        cgroup_id=77,
        container_id=b"c" * 64,
        kind=0,
        syscall=b"fdatasync",
        nr=75,
        fd=9 + which % 5,
        fd_type=b"file",
        duration_ns=10_000_000 + which,
        blocked_ns=9_000_000 + which,
        run_queue_ns=which % 4096,
        basis=TABLES["slow_syscall"].code("basis", "blocked"),
        ret=0,
    ).rows


def ours(data: np.ndarray) -> bytes:
    own = {"service.name": "tickscope"}
    encoder = SpanEncoder("boot", lambda t: t + _WALL, ProcessResources(own))
    return Envelope(own).spans(encoder.roots("slow_syscall", data))


def messages(data: np.ndarray) -> bytes:
    """The same attributes, each built as a message."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    cells = [(attribute_of("slow_syscall", c), v) for c, v in cells_of("slow_syscall", data).items()]
    for i, (t_ns, length) in enumerate(zip(data["t_ns"].tolist(), data["duration_ns"].tolist(), strict=True)):
        span = spans.add(
            trace_id=i.to_bytes(16),
            span_id=i.to_bytes(8),
            name="syscall",
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=t_ns - length + _WALL,
            end_time_unix_nano=t_ns + _WALL,
        )
        for name, values in cells:
            if (value := values[i]) is not None:
                span.attributes.add(key=name, value=any_value(value))
    return bytes(request.SerializeToString())


def sdk(data: np.ndarray) -> bytes:
    tracer = TracerProvider().get_tracer("bench")
    cells = [(attribute_of("slow_syscall", c), v) for c, v in cells_of("slow_syscall", data).items()]
    done: list[ReadableSpan] = []
    for i, (t_ns, length) in enumerate(zip(data["t_ns"].tolist(), data["duration_ns"].tolist(), strict=True)):
        span = tracer.start_span(
            "syscall", start_time=t_ns - length + _WALL, attributes={n: v[i] for n, v in cells if v[i] is not None}
        )
        span.end(t_ns + _WALL)
        done.append(span)  # type: ignore[arg-type]
    return bytes(encode_spans(done).SerializeToString())


def _us_each(make_request: Callable[[np.ndarray], bytes], data: np.ndarray) -> float:
    start = time.perf_counter()
    make_request(data)
    return (time.perf_counter() - start) / len(data) * 1e6


def _fold_us_each(n: int) -> float:
    batch = make(
        "limiter_decision",
        n,
        t_ns=np.arange(n),
        limiter_id=[b"l%d" % (i % 5) for i in range(n)],
        result=np.arange(n) % 2,
        duration_ns=1000,
    )
    store = MetricStore()
    start = time.perf_counter()
    store.offer(batch)
    store.collect()
    return (time.perf_counter() - start) / n * 1e6


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    data = rows(n)
    took: dict[str, list[float]] = {"ours": [], "messages": [], "sdk": []}
    for _ in range(_PAIRS):
        for name, run in (("ours", ours), ("messages", messages), ("sdk", sdk)):
            took[name].append(_us_each(run, data))
    for name, each in took.items():
        ratio = statistics.median(a / b for a, b in zip(each, took["ours"], strict=True))
        print(f"{name:10} {statistics.median(each):7.2f} us a span   {ratio:5.2f} x ours")
    print(
        f"{'metrics':10} {statistics.median(_fold_us_each(n) for _ in range(_PAIRS)):7.2f} us a decision folded into 3"
        " metrics"
    )


if __name__ == "__main__":
    main()
