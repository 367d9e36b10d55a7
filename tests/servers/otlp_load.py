"""Rows with prime counts for the exporter's tests, and a wait for what must come."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from agent.batch import Batch, make
from agent.common.clocks import boot_ns
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.otlp import OtlpExporter
from exporters.otlp_settings import OtlpSettings, read_otlp
from exporters.resource import describe

DECISIONS, CALLS, HANDSHAKES, CHANGES, RTT_ROWS, RETRANSMITS = 23, 17, 13, 3, 11, 7
SPANS = DECISIONS + CALLS + HANDSHAKES + CHANGES + 1  # and one finding
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def to_wall(t_ns: np.ndarray) -> np.ndarray:
    """This host's own offset, now: no clock is stepped while these tests run."""
    offset = (time.time_ns() - boot_ns()) // 1_000_000 * 1_000_000
    wall: np.ndarray = t_ns + offset
    return wall


def exporter(endpoint: str, store: MetricStore, **settings: object) -> OtlpExporter:
    return OtlpExporter(config(endpoint, **settings), describe(BOOT_ID, {}, "0.1", {}), to_wall, store)


def spans_only(endpoint: str, **settings: object) -> OtlpExporter:
    """One that sends metrics only at its end."""
    return exporter(endpoint, MetricStore(), **{"interval_s": 3600, **settings})


def config(endpoint: str, **settings: object) -> OtlpSettings:
    return read_otlp({"endpoint": endpoint, "interval_s": 0.5, **settings})


def address(text: str) -> np.void:
    """A stored IPv4 address."""
    return np.void(bytes(10) + b"\xff\xff" + bytes(int(p) for p in text.split(".")))


def workload(now: int) -> list[Batch]:
    """Decisions of one thread a second apart in the past, the first CALLS of them with a slow call inside; handshakes
    of another process; clock changes, which are evidence of one closed finding; RTT rows and retransmits for the
    metrics.
    """
    at = now - np.arange(DECISIONS, dtype=np.int64) * 10**9
    code = TABLES["limiter_decision"].code
    hist = np.zeros((RTT_ROWS, 64), np.uint32)
    hist[:, 7] = 2
    hist[:, 9] = 1
    return [
        make(
            "slow_syscall",
            CALLS,
            t_ns=at[:CALLS] - 2_000_000,
            pid=41,
            tid=43,
            duration_ns=11_000_003,
            syscall=b"fsync",
            comm=b"api",
            kind=TABLES["slow_syscall"].code("kind", "slow"),
        ),
        make(
            "limiter_decision",
            DECISIONS,
            t_ns=at,
            pid=41,
            tid=43,
            duration_ns=200_000_000,
            comm=b"api",
            limiter_id=b"orders",
            result=[code("result", "refused" if i % 2 else "allowed") for i in range(DECISIONS)],
        ),
        make(
            "tls_handshake",
            HANDSHAKES,
            t_ns=at[:HANDSHAKES],
            pid=47,
            tid=47,
            duration_ns=150_000_001,
            comm=b"curl",
            role=TABLES["tls_handshake"].code("role", "client"),
            library=b"openssl",
            result=TABLES["tls_handshake"].code("result", "ok"),
        ),
        make(
            "clock_change",
            CHANGES,
            t_ns=at[:CHANGES],
            pid=53,
            tid=53,
            comm=b"chronyd",
            kind=TABLES["clock_change"].code("kind", "step"),
            size_ns=500_000,
        ),
        make(
            "evidence",
            1,
            t_ns=now - CHANGES * 10**9,
            end_ns=now,
            as_of_ns=now,
            finding_id=b"f1",
            table=b"clock_change",
            role=TABLES["evidence"].code("role", "timeline"),
            what=b"step",
            value=500_000,
            unit=b"ns",
            keys=b'{"pid":53}',
        ),
        make(
            "finding",
            1,
            t_ns=now,
            finding_id=b"f1",
            state=TABLES["finding"].code("state", "closed"),
            start_ns=now - 10**9,
            end_ns=now,
            symptom=b"refusals",
            cause=b"clock_step",
            sentence=b"the clock was stepped",
        ),
        make(
            "tcp_rtt",
            RTT_ROWS,
            t_ns=now,
            pid=41,
            tid=43,
            comm=b"api",
            role=TABLES["tcp_rtt"].code("role", "client"),
            daddr=address("10.9.8.7"),
            dport=6379,
            interval_ns=10**9,
            samples=3,
            rtt_sum_us=3 * 256,
            rtt_min_us=200,
            rtt_max_us=600,
            hist=hist,
        ),
        make("tcp_retransmit", 1, t_ns=now, kind=0, count=RETRANSMITS),
    ]
