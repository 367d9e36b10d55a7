"""Folding rows into series, and series into points."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as MetricMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.correlate.catalogue import causes, symptoms
from agent.tables import CAUSES, SYMPTOMS, TABLES
from exporters.aggregate import GAUGE_TTL_NS, OVERFLOW, SERIES_TTL_NS, MetricStore
from exporters.exposition import render
from exporters.fold import DRIFT_SPAN_NS, MetricSeries
from exporters.metric import OTHER, Metric
from exporters.metrics import MAX_SERIES, METRICS, NOT_INCIDENTS
from exporters.page_settings import MAX_SAMPLES
from exporters.points import PointEncoder
from exporters.process_resource import ProcessResources
from exporters.spans import SpanEncoder

_S = 10**9


def _series(store: MetricStore, name: str) -> list[MetricSeries]:
    return next((s for m, s in store.collect() if m.name == name), [])


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_the_registry_names_columns_that_exist(metric: Metric) -> None:
    columns = TABLES[metric.table].by_name if metric.table else {}
    named = [
        *metric.columns,
        *metric.detail,
        *metric.identity,
        *(metric.hist or ()),
        metric.value,
        metric.distinct,
        *(metric.label_if or ())[:2],
    ]
    assert [n for n in named if n and n not in columns] == []
    if metric.where:
        assert set(metric.where[1]) <= set(columns[metric.where[0]].names)
    assert metric.instrument in ("counter", "gauge", "histogram")
    assert metric.unit in ("s", "By", "1") or metric.unit.startswith("{")
    if metric.instrument == "histogram":
        assert (metric.unit, metric.raw) in (("s", "ns"), ("s", "us"))


def test_every_counter_that_an_alert_may_look_at_starts_at_0_or_has_a_companion_that_does() -> None:
    counters = {m.name: m for m in METRICS if m.table and m.instrument == "counter"}
    alone = {
        n
        for n, m in counters.items()
        if not m.bounded and not (n.partition(".by_")[1] and counters[n.partition(".by_")[0]].bounded)
    }
    assert alone == NOT_INCIDENTS


def test_a_delay_is_no_part_of_the_decision_s_own_time() -> None:
    """A Go program's Wait lasts until it wakes up; what its caller gave up on tells nothing of the decision."""
    store, code, rows = MetricStore(), TABLES["limiter_decision"].code, 5
    results = ("allowed", "delayed", "delayed", "delayed", "cancelled")
    store.offer(
        make(
            "limiter_decision",
            rows,
            t_ns=np.arange(rows),
            limiter_id=b"a",
            result=[code("result", name) for name in results],
            duration_ns=[3000, 100_000_000 + 5000, 7000, NULL_I64, 40_000_000],
            wait_ns=[0, 100_000_000, NULL_I64, 9, 100_000_000],
        )
    )
    taken = {
        dict(s.attributes)["rate_limiting.result"]: (s.count, s.value)
        for s in _series(store, "tickscope.limiter.decision.duration")
    }
    assert taken == {"allowed": (1, 3000), "delayed": (1, 5000)}


def _zeros(store: MetricStore, name: str) -> list[MetricSeries]:
    return [s for s in _series(store, name) if s.value == 0 and s.count == 0]


def test_a_fresh_store_has_every_bounded_series_at_0_and_a_first_event_adds_none() -> None:
    """What Prometheus' increase() needs: it does not count a series' first sample."""
    store, code = MetricStore(), {t: TABLES[t].code for t in TABLES}
    names = (
        "ntp.jump.count",
        "ntp.jump.size",
        "tickscope.findings",
        "tickscope.findings.by_cause",
        "tickscope.losses",
        "tickscope.losses.reports",
        "tickscope.clock.changes",
        "tickscope.tcp.resets",
        "tickscope.syscall.slow",
        "tickscope.limiter.decisions",
        "tickscope.limiter.over_admitted",
        "tickscope.limiter.wrongly_refused",
        "tickscope.socket.accept.overflows",
    )
    before = {n: len(_zeros(store, n)) for n in names}
    assert all(before.values())
    store.offer(
        make("clock_change", 1, t_ns=1, kind=code["clock_change"]("kind", "step"), size_ns=5, direction=0, comm=b"date")
    )
    store.offer(
        make(
            "finding",
            2,
            t_ns=1,
            finding_id=[b"a", b"b"],
            symptom=[b"clock_jump", b"never heard of"],
            cause=b"clock_step",
            severity=[0, -1],
        )
    )
    store.offer(make("loss", 2, t_ns=1, stage=[1, 4], source=b"x", count=[9060, NULL_I64]))
    store.offer(make("tcp_reset", 1, t_ns=1, direction=0))
    store.offer(make("slow_syscall", 3, t_ns=[1, 2, 3], kind=0, basis=[3, 3, 2], duration_ns=1))  # one call
    store.offer(make("limiter_decision", 1, t_ns=1, result=1))
    store.offer(make("limiter_jump", 1, t_ns=1, quality=0, direction=0, over_admitted=17, wrongly_refused=3))
    for overflows in (7, 8):
        store.offer(make("socket_queue", 1, t_ns=overflows, kind=0, overflows=overflows))
        store.collect()
    after = {n: sum(s.value for s in _series(store, n)) for n in names}
    assert after == {
        "ntp.jump.count": 1,
        "ntp.jump.size": 5,
        "tickscope.findings": 2,
        "tickscope.findings.by_cause": 2,
        "tickscope.losses": 9060,
        "tickscope.losses.reports": 2,
        "tickscope.clock.changes": 1,
        "tickscope.tcp.resets": 1,
        "tickscope.syscall.slow": 1,
        "tickscope.limiter.decisions": 1,
        "tickscope.limiter.over_admitted": 17,
        "tickscope.limiter.wrongly_refused": 3,
        "tickscope.socket.accept.overflows": 1,
    }
    assert {n: len(_series(store, n)) for n in names} == before
    other = next(
        s for s in _series(store, "tickscope.findings") if dict(s.attributes)["tickscope.symptom"] == OTHER and s.value
    )
    assert dict(other.attributes)["tickscope.severity"] == OTHER


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_first_event_in_otlp_follows_a_0_that_began_before_it(temporality: str) -> None:
    store, now = MetricStore(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    encoder = PointEncoder(temporality, lambda t: t + _EPOCH, now)

    def stepped(at: int) -> list[tuple[int, int, int]]:
        messages = [
            MetricMessage.FromString(m)
            for m in encoder.encode([c for c in store.collect() if c[0].name == "ntp.jump.count"], at)[0]
        ]
        encoder.committed()
        return [
            (p.start_time_unix_nano - _EPOCH, p.time_unix_nano - _EPOCH, p.as_int)
            for m in messages
            for p in m.sum.data_points
            if p.attributes[0].value.string_value == "forward"
        ]

    begun = stepped(now + _S)
    store.offer(make("clock_change", 1, t_ns=now + _S + 1, kind=0, direction=0))
    ((start, end, value),) = stepped(now + 2 * _S)
    assert (end, value) == (now + 2 * _S, 1)
    if temporality == "delta":
        assert (begun, start) == ([], now + _S)
    else:
        assert begun == [(start, now + _S, 0)]
        assert start <= now + _S


def test_the_symptoms_and_causes_of_the_correlator_are_those_that_counters_start_with() -> None:
    assert len(causes()) > 10
    assert {*symptoms()} <= {*SYMPTOMS.split()} and {*causes()} <= {*CAUSES.split()}
    assert {"unknown", "process_stopped"} <= {*CAUSES.split()} and "silence" in SYMPTOMS.split()


def _busy() -> Iterator[Batch]:
    """A busy node's rows: far more label sets than the page has room for."""
    random, n = np.random.default_rng(7), 20_000

    def names(word: str, most: int, count: int = n) -> list[bytes]:
        return [b"%s-%d" % (word.encode(), i) for i in random.integers(0, most, count)]

    hist = np.zeros((n, 64), np.uint32)
    hist[:, 14] = 1
    peers = np.frombuffer(
        b"".join(bytes(10) + b"\xff\xff\x0a\x00" + int(i).to_bytes(2, "big") for i in random.integers(0, 900, n)), "V16"
    )
    yield make(
        "syscall_latency",
        n,
        t_ns=1,
        comm=names("c", 300),
        syscall=names("call", 60),
        basis=random.integers(0, 3, n),
        kind=random.integers(-1, 2, n),
        count=1,
        errors=1,
        sum_ns=20_000,
        run_queue_ns=7,
        hist=hist,
    )
    yield make(
        "slow_syscall",
        n,
        t_ns=1,
        comm=names("c", 300),
        syscall=names("call", 60),
        kind=random.integers(0, 2, n),
        duration_ns=10**7,
    )
    yield make(
        "tcp_rtt",
        n,
        t_ns=1,
        comm=names("c", 300),
        role=random.integers(0, 2, n),
        daddr=peers,
        rtt_sum_us=20_000,
        hist=hist,
    )
    yield make(
        "tcp_connect", n, t_ns=1, comm=names("c", 300), result=random.integers(0, 3, n), daddr=peers, duration_ns=10**6
    )
    yield make(
        "tls_handshake",
        n,
        t_ns=1,
        comm=names("c", 300),
        result=random.integers(0, 3, n),
        role=random.integers(0, 2, n),
        duration_ns=10**7,
    )
    yield make("tcp_retransmit", n, t_ns=1, comm=names("c", 300), kind=random.integers(0, 3, n), count=1)
    yield make(
        "limiter_decision",
        n,
        t_ns=1,
        comm=names("c", 300),
        limiter_id=names("l", 400),
        result=random.integers(0, 4, n),
        duration_ns=10**4,
        wait_ns=0,
    )
    yield make(
        "queue_lag",
        n,
        t_ns=1,
        destination=names("q", 200),
        consumer_group=names("g", 9),
        lag_messages=1,
        pending=1,
        consumers=1,
    )
    yield make(
        "socket_queue",
        n,
        t_ns=1,
        comm=names("c", 300),
        kind=0,
        sport=random.integers(0, 250, n),
        queue=1,
        limit=1,
        drops=1,
        overflows=1,
    )
    yield make("loss", n, t_ns=1, stage=random.integers(0, 5, n), source=names("s", 200), count=1)


def test_a_busy_node_is_a_page_below_5000_samples_that_counts_everything() -> None:
    store, rows = MetricStore(), 20_000
    for batch in _busy():
        store.offer(batch)
    page = [line for line in render(store.collect(), {}).splitlines() if not line.startswith("#")]
    assert 3000 < len(page) < 5000
    assert store.samples <= len(page) <= MAX_SAMPLES + 1
    sums = {
        m.name: sum(s.count if m.instrument == "histogram" else s.value for s in series)
        for m, series in store.collect()
    }
    for name in (
        "tickscope.syscall.errors",
        "tickscope.syscall.errors.by_call",
        "tickscope.syscall.duration",
        "tickscope.tcp.rtt",
        "tickscope.tcp.connects",
        "tickscope.tls.handshake.duration",
        "tickscope.limiter.decisions",
        "tickscope.limiter.decisions.by_limiter",
        "tickscope.losses.by_source",
    ):
        assert sums[name] == rows, name
    assert store.overflowed > 0
    # A flood of one label leaves every other metric some series of its own.
    store.offer(make("tcp_reset", 1, t_ns=2, comm=b"rare"))
    series = _series(store, "tickscope.tcp.resets.by_process")
    assert [dict(s.attributes)["process.executable.name"] for s in series] == ["rare"]
    # Hours later what is gone makes room, in every metric, but for the series that are there from the start.
    late = 3 * SERIES_TTL_NS
    store.offer(
        make(
            "tcp_rtt",
            60,
            t_ns=late,
            comm=[b"new-%d" % i for i in range(60)],
            role=0,
            rtt_sum_us=1,
            hist=np.ones((60, 64), np.uint32),
        )
    )
    assert sum("new-" in str(s.attributes) for s in _series(store, "tickscope.tcp.rtt")) == 60
    assert len(_series(store, "tickscope.losses.by_source")) < 5
    for metric in (m for m in METRICS if m.bounded):
        assert len(_series(store, metric.name)) == len(list(metric.starts())), metric.name


def _services(n: int) -> Iterator[Batch]:
    """A node of so many, each a server and a client; their listeners are seen last."""
    names, hist = [b"service-%d" % i for i in range(n)], np.ones((2 * n, 64), np.uint32)
    calls = [b"call-%d" % i for i in range(60)]
    yield make("tcp_rtt", 2 * n, t_ns=1, comm=names * 2, role=[0] * n + [1] * n, hist=hist)
    yield make("service_latency", n, t_ns=1, comm=names, hist=hist[:n])
    yield make("tcp_connect", n, t_ns=1, comm=names, duration_ns=5_000_000, result=0)
    yield make("syscall_latency", 120, t_ns=1, syscall=calls * 2, basis=[0] * 60 + [1] * 60, kind=1, hist=hist[0])
    for port, name in enumerate(names):
        yield make("socket_queue", 1, t_ns=2, comm=name, kind=0, sport=port, queue=1, limit=128, drops=0)


@pytest.mark.parametrize(
    ("services", "samples", "whole"),
    [(30, 9800, True), (75, 17_000, True), (75, MAX_SAMPLES, False), (200, MAX_SAMPLES, False)],
)
def test_every_listener_has_its_gauges_and_every_histogram_some_series(
    services: int, samples: int, whole: bool
) -> None:
    """What is one sample has room beside histograms, whoever comes first; of these none takes all."""
    store = MetricStore(max_samples=samples)
    for batch in _services(services):
        store.offer(batch)
    assert len(_series(store, "tickscope.socket.queue")) == services
    assert (store.overflowed == 0) == whole
    assert len(_series(store, "tickscope.socket.queue.limit")) == services
    assert len(_series(store, "tickscope.socket.queue.drops.by_queue")) == services
    for name in ("tcp.rtt", "service.duration", "tcp.connect.duration", "syscall.duration"):
        assert len(_series(store, f"tickscope.{name}")) > 5, name
    assert store.samples < samples


def test_full_detail_has_all_labels_and_buckets() -> None:
    store = MetricStore(max_samples=None, full=True)
    for batch in _busy():
        store.offer(batch)
    calls = next((m, s) for m, s in store.collect() if m.name == "tickscope.syscall.duration")
    assert len(calls[1]) == MAX_SERIES
    assert "process.executable.name" in dict(calls[1][0].attributes)
    assert list(calls[0].powers) == list(range(10, 37))


def test_what_the_agent_observes_of_itself() -> None:
    store, role = MetricStore(), (("tickscope.role", "helper"),)
    store.observe("tickscope.process.cpu", [(role, 7.5)], 100)
    ((since, value),) = [(s.since_ns, s.value) for s in _series(store, "tickscope.process.cpu")]
    assert (value, 0 < since <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)) == (7.5, True)
    store.observe("tickscope.process.cpu", [(role, 8.5)], 200)
    assert [(s.since_ns, s.value) for s in _series(store, "tickscope.process.cpu")] == [(since, 8.5)]
    store.observe("tickscope.process.cpu", [(role, 0.5)], 300)  # another process
    assert [(s.since_ns, s.value) for s in _series(store, "tickscope.process.cpu")] == [(300, 0.5)]
    store.observe("tickscope.process.cpu", [], 400)
    assert _series(store, "tickscope.process.cpu") == []


def test_names_are_unique_both_ways() -> None:
    assert len({m.name for m in METRICS}) == len({m.prometheus for m in METRICS})
    assert len({(m.name, m.table) for m in METRICS}) == len(METRICS)
    for name in {m.name for m in METRICS}:
        entries = [m for m in METRICS if m.name == name]
        assert len({(m.unit, m.instrument, m.description, m.integral) for m in entries}) == 1
        assert len({(m.labels, m.columns) for m in entries}) == len(entries)


_OF_UNIT = {"s": ["seconds"], "By": ["bytes"]}


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: f"{m.name}-{m.table}")
def test_the_page_has_the_names_that_prometheus_makes_of_otlp(metric: Metric) -> None:
    """By the rules of Prometheus' own receiver and of the Collector (github.com/prometheus/otlptranslator)."""
    words = re.findall(r"[a-zA-Z0-9:]+", metric.name)
    unit, _, per = metric.unit.partition("/")
    words += [word for word in _OF_UNIT.get(unit, []) if word not in words]
    words += {"s": ["per_second"], "": []}[per]
    if metric.instrument == "counter":
        words = [*(word for word in words if word != "total"), "total"]
    if metric.unit == "1" and metric.instrument == "gauge":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    assert metric.prometheus == "_".join(words)


@pytest.mark.parametrize(
    ("name", "table", "column", "most_s"),
    [
        ("ntp.jump.size", "clock_change", "size_ns", 50 * 365 * 86_400),  # a clock without a battery: 1970
        ("tickscope.tcp.connect.duration", "tcp_connect", "duration_ns", 128),  # 6 retries of SYN
        ("tickscope.dns.lookup.duration", "dns_lookup", "duration_ns", 60),  # 5 s, 3 servers, 2 attempts; 2 names
    ],
)
def test_the_longest_usual_value_is_within_the_buckets(name: str, table: str, column: str, most_s: int) -> None:
    """A quantile of what is above the last bound is that bound: a jump of a day was shown as 69 s."""
    store = MetricStore()
    label = {"direction": 0} if table == "clock_change" else {"result": 0}
    store.offer(make(table, 1, t_ns=1, **label, **{column: most_s * _S}))
    ((metric, found),) = [(m, [s for s in series if s.count]) for m, series in store.collect() if m.name == name]
    (series,) = found
    assert series.buckets[metric.powers[0] : metric.powers[-1]].sum() == series.count == 1


def test_the_clocks_metrics() -> None:
    store, table = MetricStore(), TABLES["clock_change"]
    forward, backward = (table.code("direction", variant) for variant in ("forward", "backward"))
    store.offer(
        make(
            "clock_change",
            5,
            t_ns=np.arange(5),
            kind=table.code("kind", "step"),
            size_ns=[700, -1500, -1600, 0, 99],
            direction=[forward, backward, backward, -1, -1],
        )
    )
    store.offer(
        make("clock_offset", 2, t_ns=[1, 2], ntp_offset_ns=[5, -2_500_000], leap_indicator=[0, 3], synchronised=[1, 0])
    )
    store.offer(make("clock_offset", 1, t_ns=3))
    daemon = TABLES["clock_daemon"]
    store.offer(
        make(
            "clock_daemon",
            2,
            t_ns=4,
            daemon=[b"chrony", b"sntp"],
            kind=[daemon.code("kind", k) for k in ("system", "source")],
            source=[b"", b"ntp.example"],
            offset_ns=[1_000_000_000, 2_000_000_000],
        )
    )
    jumps = {dict(s.attributes)["direction"]: s.value for s in _series(store, "ntp.jump.count")}
    assert jumps == {"forward": 1, "backward": 2}
    sizes = {dict(s.attributes)["direction"]: s for s in _series(store, "ntp.jump.size")}
    assert (sizes["backward"].count, sizes["backward"].low, sizes["backward"].high) == (2, 1500, 1600)
    assert (sizes["forward"].count, int(sizes["forward"].buckets[9])) == (1, 1)
    offset = next((m, s) for m, s in store.collect() if m.name == "ntp.offset")
    assert {dict(s.attributes)["tickscope.daemon"]: offset[0].shown(s.value) for s in offset[1]} == {
        "kernel": -0.0025,
        "chrony": 1.0,
    }
    assert [dict(s.attributes) for s in _series(store, "ntp.source.offset")] == [
        {"tickscope.daemon": "sntp", "tickscope.source": "ntp.example"}
    ]
    assert [s.value for s in _series(store, "ntp.leap_indicator")] == [3]
    assert [s.value for s in _series(store, "ntp.sync_status")] == [0]
    names = {m.prometheus for m, _ in store.collect()}
    assert {
        "ntp_offset_seconds",
        "ntp_leap_indicator",
        "ntp_jump_count_total",
        "ntp_jump_size_seconds",
        "ntp_sync_status",
    } <= names


def test_the_notices_metrics_count_since_the_agents_start() -> None:
    store, socket = MetricStore(), TABLES["notice_status"].code("channel", "socket")
    store.offer(
        make(
            "notice_status",
            2,
            t_ns=[1, 2],
            channel=socket,
            sent=[0, 7],
            pending=[0, 3],
            acknowledged=[0, 4],
            subscribers=[0, 2],
        )
    )
    store.offer(make("notice_status", 1, t_ns=3, channel=1, sent=5))
    assert [s.value for s in _series(store, "tickscope.clock.pending_reanchorings")] == [3]
    assert {dict(s.attributes)["tickscope.channel"]: s.value for s in _series(store, "tickscope.clock.notices")} == {
        "socket": 7,
        "exec": 5,
        OTHER: 0,
    }


@given(st.lists(st.integers(0, 2**53), min_size=1, max_size=200))
def test_an_event_is_counted_in_the_bucket_of_its_power_of_two(values: list[int]) -> None:
    store = MetricStore()
    store.offer(make("tls_handshake", len(values), t_ns=np.arange(len(values)), duration_ns=values))
    (series,) = _series(store, "tickscope.tls.handshake.duration")
    expected = np.zeros(64, np.int64)
    for v in values:
        expected[max(v, 1).bit_length() - 1] += 1
    assert series.buckets.tolist() == expected.tolist()
    assert (series.count, series.low, series.high) == (len(values), min(values), max(values))
    assert series.value == pytest.approx(sum(values))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=60),
    st.integers(1, 5),
)
def test_folding_does_not_depend_on_how_rows_are_batched(rows: list[tuple[int, int, int]], pieces: int) -> None:
    def total(sizes: list[list[tuple[int, int, int]]]) -> dict[object, float]:
        store = MetricStore()
        for part in sizes:
            if part:
                who, kind, count = zip(*part, strict=True)
                store.offer(
                    make(
                        "tcp_retransmit",
                        len(part),
                        t_ns=1,
                        comm=[b"p%d" % w for w in who],
                        kind=[min(k, 2) for k in kind],
                        count=count,
                    )
                )
        return {s.attributes: s.value for s in _series(store, "tickscope.tcp.retransmits.by_process")}

    assert total([rows]) == total([rows[i::pieces] for i in range(pieces)])


def test_unknown_values_are_left_out_not_counted_as_zero() -> None:
    store = MetricStore()
    store.offer(make("limiter_decision", 3, t_ns=1, wait_ns=[NULL_I64, 4, NULL_I64], duration_ns=NULL_I64))
    assert [s.count for s in _series(store, "tickscope.limiter.wait")] == [1]
    assert _series(store, "tickscope.limiter.decision.duration") == []
    assert [s.value for s in _series(store, "tickscope.limiter.decisions.by_limiter")] == [3, 0, 0]


def test_series_beyond_the_bound_go_into_one_that_reports_it() -> None:
    store = MetricStore(max_series=5)
    store.offer(make("tcp_reset", 97, t_ns=1, comm=[b"c%d" % i for i in range(97)]))
    store.offer(make("tcp_reset", 97, t_ns=2, comm=[b"c%d" % i for i in range(97)]))
    series = {s.attributes: s.value for s in _series(store, "tickscope.tcp.resets.by_process")}
    assert len(series) == 5
    assert series[OVERFLOW] == 2 * 93
    assert sum(series.values()) == 2 * 97


def _drops(store: MetricStore, devices: list[bytes], t_ns: int, drops: object) -> None:
    kind = TABLES["socket_queue"].code("kind", "qdisc")
    store.offer(
        make("socket_queue", len(devices), t_ns=t_ns, kind=kind, device=devices, comm=b"", queue=1, drops=drops)
    )


def test_running_totals_beyond_the_bound_share_a_series_and_last_values_are_left_out_and_no_loss() -> None:
    """Each total is told apart, whatever series it is in: taken for one, two devices' would be a reset at each turn.

    A loss a poll would be an alert, and a gap beside every query, for as long as a node has more queues than the page
    has room for.
    """
    store, polls, beyond = MetricStore(max_samples=None), 60, 2100 - (MAX_SERIES - 1)
    _drops(store, [b"past%d" % i for i in range(2100)], 1, 0)
    store.collect()
    for poll in range(polls):
        _drops(store, [b"one", b"two"], 2 + poll, [1_000_000 + poll, 5])
        store.collect()
    drops = {s.attributes: s.value for s in _series(store, "tickscope.socket.queue.drops.by_queue")}
    assert len(drops) == MAX_SERIES
    assert (drops.pop(OVERFLOW), sum(drops.values())) == (polls - 1, 0)
    assert sum(s.value for s in _series(store, "tickscope.socket.queue.drops")) == polls - 1
    lengths = [s.attributes for s in _series(store, "tickscope.socket.queue")]
    assert (len(lengths), OVERFLOW in lengths) == (MAX_SERIES - 1, False)
    assert store.overflowed >= beyond + 2 * polls
    assert store.losses() == {"series_limit": 0}


def test_who_was_not_seen_for_long_makes_room() -> None:
    store = MetricStore(max_series=4)

    def reset(*names: bytes, t_ns: int) -> set[object]:
        store.offer(make("tcp_reset", len(names), t_ns=t_ns, comm=names))
        return {
            dict(s.attributes).get("process.executable.name", "overflow")
            for s in _series(store, "tickscope.tcp.resets.by_process")
        }

    assert reset(b"a", b"b", t_ns=1) == {"a", "b"}
    assert reset(b"c", t_ns=_S) == {"a", "b", "c"}
    assert reset(b"c", t_ns=_S + SERIES_TTL_NS) == {"a", "b", "c"}  # who needs no room takes none
    assert reset(b"d", t_ns=_S + SERIES_TTL_NS) == {"c", "d"}
    assert reset(b"e", b"f", t_ns=_S + SERIES_TTL_NS) == {"c", "d", "e", "overflow"}
    assert store.losses() == {"series_limit": 0}


def test_a_gauge_that_is_not_shown_makes_room_for_one_that_is() -> None:
    store = MetricStore(max_series=3)
    for t_ns, names in ((1, (b"a", b"b")), (1 + GAUGE_TTL_NS, (b"c", b"d"))):
        store.offer(make("queue_lag", 2, t_ns=t_ns, destination=names, lag_messages=7))
        assert {
            dict(s.attributes)["messaging.destination.name"].encode() for s in _series(store, "tickscope.queue.lag")
        } == set(names)
    assert store.losses() == {"series_limit": 0}


def _points(encoder: PointEncoder, store: MetricStore, now: int) -> dict[str, tuple[int, int, int]]:
    """(start, end, value) of the resets of each command, CLOCK_BOOTTIME ns."""
    messages = [
        MetricMessage.FromString(m)
        for m in encoder.encode([c for c in store.collect() if c[0].name == "tickscope.tcp.resets.by_process"], now)[0]
    ]
    encoder.committed()
    points = [p for m in messages for p in m.sum.data_points]
    return {
        p.attributes[0].value.string_value: (p.start_time_unix_nano - _EPOCH, p.time_unix_nano - _EPOCH, p.as_int)
        for p in points
    }


_EPOCH = 1_700_000_000 * _S


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("between", [True, False])
def test_a_series_that_comes_back_begins_anew(temporality: str, between: bool) -> None:
    """Whether or not an export lay between its end and its return; what it counts anew follows what it had counted."""
    store, encoder, late = (
        MetricStore(max_series=3),
        PointEncoder(temporality, lambda t: t + _EPOCH, 0),
        2 * _S + SERIES_TTL_NS,
    )
    store.offer(make("tcp_reset", 9, t_ns=_S, comm=[b"a"] * 5 + [b"b"] * 4))
    assert _points(encoder, store, 2 * _S)["a"][1:] == (2 * _S, 5)
    store.offer(make("tcp_reset", 1, t_ns=late, comm=b"c"))
    if between:
        assert _points(encoder, store, late + _S) == {
            "c": (late if temporality == "cumulative" else 2 * _S, late + _S, 1)
        }
    else:
        store.collect()
    before = late + _S if between else 2 * _S
    # One row was drained late: it is older than the last export.
    store.offer(make("tcp_reset", 3, t_ns=[_S + 7, late + 3 * _S, late + 3 * _S], comm=b"a"))
    assert _points(encoder, store, late + 4 * _S)["a"] == (before, late + 4 * _S, 3)
    store.offer(make("tcp_reset", 2, t_ns=late + 5 * _S, comm=b"a"))
    again = (before, late + 6 * _S, 5) if temporality == "cumulative" else (late + 4 * _S, late + 6 * _S, 2)
    assert _points(encoder, store, late + 6 * _S)["a"] == again
    assert len(encoder._begins) == (2 if temporality == "cumulative" else 0)  # what is known of the past stays bounded


def test_a_servers_peers_are_one_series() -> None:
    store = MetricStore(full=True)
    hist = np.zeros((6, 64), np.uint32)
    hist[:, 3] = 1
    peers = np.frombuffer(b"".join(bytes(10) + b"\xff\xff\x0a\x00\x00" + bytes([i]) for i in range(6)), "V16")
    store.offer(make("tcp_rtt", 6, t_ns=1, comm=b"s", role=[0, 0, 0, 1, 1, 1], daddr=peers, hist=hist))
    assert sorted(s.count for s in _series(store, "tickscope.tcp.rtt")) == [1, 1, 1, 3]


def test_queues_of_one_name_in_two_clusters_have_series_of_their_own() -> None:
    store = MetricStore()
    clusters = [b"east", b"west"]
    store.offer(
        make("queue_lag", 2, t_ns=_S, destination=b"q", cluster=clusters, lag_messages=[5, 9], status=b"stalled")
    )
    store.offer(make("queue_lag", 2, t_ns=2 * _S, destination=b"q", cluster=clusters, status=[b"down", b"ok"]))
    values = {
        name: {dict(s.attributes)["tickscope.cluster"]: s.value for s in _series(store, f"tickscope.queue.{name}")}
        for name in ("lag", "up", "stuck")
    }
    assert values == {"lag": {}, "up": {"east": 0.0, "west": 1.0}, "stuck": {"west": 0.0}}


@pytest.mark.parametrize("status", [b"", b"unknown", b"down", b"gone"])
def test_a_queue_that_is_not_known_to_be_stuck_is_not_said_to_move(status: bytes) -> None:
    store = MetricStore()
    for t_ns, of in ((_S, b"stopped"), (2 * _S, status)):
        store.offer(make("queue_lag", 1, t_ns=t_ns, destination=b"q", status=of))
    assert _series(store, "tickscope.queue.stuck") == []


def test_each_server_of_a_cluster_has_the_time_of_its_own_poll() -> None:
    store = MetricStore()
    peers = np.frombuffer(peer_bytes("10.0.0.1", 6379) + peer_bytes("10.0.0.2", 6379), "V18")
    store.offer(make("queue_lag", 2, t_ns=_S, destination=b"q", cluster=b"c", peer=peers, poll_ns=[_S, _S // 100]))
    shown = {dict(s.attributes)["tickscope.peer"]: s.value for s in _series(store, "tickscope.queue.poll.duration")}
    assert shown == {"10.0.0.1:6379": _S, "10.0.0.2:6379": _S // 100}


def test_a_server_that_is_down_is_not_hidden_by_another_one_of_its_cluster() -> None:
    """Neither has a queue: their rows differ in the address only, and are polled in turn."""
    store = MetricStore()
    peers = np.frombuffer(peer_bytes("10.0.0.1", 5672) + peer_bytes("10.0.0.2", 5672), "V18")
    store.offer(make("queue_lag", 2, t_ns=[_S, _S + 1], cluster=b"c", peer=peers, status=[b"down", b"ok"]))
    shown = {dict(s.attributes)["tickscope.peer"]: s.value for s in _series(store, "tickscope.queue.up")}
    assert shown == {"10.0.0.1:5672": 0.0, "10.0.0.2:5672": 1.0}


@pytest.mark.parametrize("before", [peer_bytes("10.0.0.1", 5672), bytes(18)], ids=["other", "unknown"])
def test_a_queue_that_answers_at_another_address_is_up(before: bytes) -> None:
    store = MetricStore()
    peers = np.frombuffer(before + peer_bytes("10.0.0.2", 5672), "V18")
    store.offer(make("queue_lag", 2, t_ns=[_S, 2 * _S], destination=b"q", peer=peers, status=[b"down", b"ok"]))
    assert [s.value for s in _series(store, "tickscope.queue.up")] == [1.0]


def test_a_gauge_is_the_newest_value_and_goes_stale() -> None:
    store = MetricStore()
    store.offer(make("queue_lag", 2, t_ns=[2 * _S, _S], destination=b"q", lag_messages=[5, 9]))
    assert [s.value for s in _series(store, "tickscope.queue.lag")] == [5]
    store.offer(make("queue_lag", 1, t_ns=3 * _S + GAUGE_TTL_NS, destination=b"other", lag_messages=1))
    assert [dict(s.attributes)["messaging.destination.name"] for s in _series(store, "tickscope.queue.lag")] == [
        "other"
    ]


@pytest.mark.parametrize("batches", [1, 4])
def test_a_gauge_is_not_shown_while_its_newest_row_reports_that_it_is_not_known(batches: int) -> None:
    """As when a time daemon or a broker is gone; who never had a value has no series either."""

    def shown(times: list[int], values: list[object]) -> list[float]:
        store = MetricStore()
        for part in np.array_split(np.arange(len(times)), batches):
            given = [(times[i], values[i]) for i in part]
            store.offer(
                make(
                    "queue_lag",
                    len(given),
                    t_ns=[t for t, _ in given],
                    destination=b"q",
                    lag_messages=[v for _, v in given],
                )
            )
            store.collect()
        return [s.value for s in _series(store, "tickscope.queue.lag")]

    assert shown([1, 2, 3, 4], [5, 6, 7, NULL_I64]) == []
    assert shown([1, 2, 3, 4], [5, NULL_I64, NULL_I64, 8]) == [8]
    assert shown([1, 2, 4, 3], [5, 6, 7, NULL_I64]) == [7]
    assert shown([1, 2, 3, 4], [NULL_I64] * 4) == []


def test_a_running_total_counts_from_its_first_sight_and_over_a_reset() -> None:
    store = MetricStore()
    accept = TABLES["socket_queue"].code("kind", "accept")
    for overflows in (100, 107, 3):
        store.offer(make("socket_queue", 1, t_ns=1, kind=accept, overflows=overflows))
        store.collect()
    assert [s.value for s in _series(store, "tickscope.socket.accept.overflows")] == [7 + 3]


def test_a_finding_is_counted_once() -> None:
    store = MetricStore()
    for _ in range(3):
        store.offer(make("finding", 2, t_ns=1, finding_id=[b"a", b"b"], cause=b"tls"))
        store.collect()
    assert {
        dict(s.attributes)["tickscope.cause"]: s.value for s in _series(store, "tickscope.findings.by_cause") if s.value
    } == {"tls": 2}


def test_a_finding_that_becomes_an_alarm_is_counted_as_one_too() -> None:
    store = MetricStore()
    for severity in (0, 0, 1, 1):
        store.offer(make("finding", 1, t_ns=1, finding_id=b"a", symptom=b"clock_jump", severity=severity))
        store.collect()
    assert {
        dict(s.attributes)["tickscope.severity"]: s.value for s in _series(store, "tickscope.findings") if s.value
    } == {"notice": 1, "alarm": 1}


def test_drift_is_a_slope_in_parts_per_billion() -> None:
    store = MetricStore()
    store.offer(make("clock_offset", 1, t_ns=0, mono_raw_ns=1000))
    assert _series(store, "tickscope.clock.drift") == []
    store.offer(make("clock_offset", 1, t_ns=2 * DRIFT_SPAN_NS, mono_raw_ns=1000 + 2 * DRIFT_SPAN_NS // 1000))
    assert [s.value for s in _series(store, "tickscope.clock.drift")] == [pytest.approx(1e6)]


def test_a_wall_step_back_keeps_a_deltas_length() -> None:
    """The clock goes back by a minute between two exports: the second interval is still 10 s long and ends now."""
    offset = [1_700_000_000 * _S]
    store, encoder = MetricStore(), PointEncoder("delta", lambda t: t + offset[0], 0)
    seen = []
    for now in (10 * _S, 20 * _S):
        store.offer(make("tcp_reset", 1, t_ns=now))
        (message,), points = encoder.encode(
            [c for c in store.collect() if c[0].name == "tickscope.tcp.resets.by_process"], now
        )
        encoder.committed()
        point = MetricMessage.FromString(message).sum.data_points[0]
        seen.append(
            (point.time_unix_nano - offset[0], point.time_unix_nano - point.start_time_unix_nano, point.as_int, points)
        )
        offset[0] -= 60 * _S
    assert seen == [(10 * _S, 10 * _S, 1, 1), (20 * _S, 10 * _S, 1, 1)]


def test_what_was_not_committed_is_in_the_next_delta() -> None:
    store, encoder = MetricStore(), PointEncoder("delta", lambda t: t + 1_700_000_000 * _S, 0)
    store.offer(make("tcp_reset", 3, t_ns=1))
    encoder.encode(store.collect(), _S)
    store.offer(make("tcp_reset", 4, t_ns=2))
    (both, message), _ = encoder.encode(store.collect(), 2 * _S)
    assert [MetricMessage.FromString(m).sum.data_points[0].as_int for m in (both, message)] == [7, 7]
    encoder.committed()
    assert encoder.encode(store.collect(), 3 * _S) == ([], 0)


_HIST = np.zeros((1, 64), np.uint32)
_HIST[0, 20] = 1


@pytest.mark.parametrize(
    ("table", "columns", "counted", "name", "value_s"),
    [
        ("tls_handshake", {"duration_ns": 150_000_000, "result": 0}, None, "tickscope.tls.handshake.duration", 0.15),
        ("tcp_connect", {"duration_ns": 150_000_000, "result": 1}, None, "tickscope.tcp.connect.duration", 0.15),
        (
            "limiter_decision",
            {"duration_ns": 150_000_000, "wait_ns": 100_000_000, "result": 2},
            None,
            "tickscope.limiter.decision.duration",
            0.05,
        ),
        ("limiter_decision", {"wait_ns": 100_000_000, "result": 2}, None, "tickscope.limiter.wait", 0.1),
        ("clock_change", {"kind": 0, "size_ns": -2_000_000_000, "direction": 1}, None, "ntp.jump.size", 2.0),
        (
            "slow_syscall",
            {"syscall": b"fsync", "kind": 0, "basis": 2, "duration_ns": 3_000_000, "blocked_ns": 2_000_000},
            ("syscall_latency", {"syscall": b"fsync", "kind": 0, "basis": 2, "hist": _HIST, "sum_ns": 2_000_000}),
            "tickscope.syscall.duration",
            0.002,
        ),
    ],
)
def test_sent_spans_are_exemplars_of_the_histograms_that_count_them(
    table: str, columns: dict[str, Any], counted: tuple[str, dict[str, Any]] | None, name: str, value_s: float
) -> None:
    store, points = MetricStore(), PointEncoder("cumulative", lambda t: t + _EPOCH, 0)
    rows = make(table, 1, t_ns=_S, pid=7, comm=b"api", **columns)
    store.offer(make(counted[0], 1, t_ns=_S, pid=7, comm=b"api", **counted[1]) if counted else rows)
    encoder = SpanEncoder("boot", lambda t: t + _EPOCH, ProcessResources({"service.name": "tickscope"}), store)
    sent = encoder.decisions(rows.rows, [], {}) if table == "limiter_decision" else encoder.roots(table, rows.rows)
    span = Span.FromString(sent[0].span)

    def exemplars(now: int) -> list[Any]:
        messages = map(MetricMessage.FromString, points.encode(store.collect(), now)[0])
        data = next(m for m in messages if m.name == name).histogram.data_points
        return [(point, one) for point in data for one in point.exemplars]

    ((point, one),) = exemplars(boot_ns())
    assert (one.trace_id, one.span_id, one.time_unix_nano) == (span.trace_id, span.span_id, _EPOCH + _S)
    assert (one.as_double, point.count) == (value_s, 1)
    place = int(np.searchsorted(point.explicit_bounds, one.as_double))
    assert point.bucket_counts[place] == 1
    assert exemplars(boot_ns()) == []  # each goes out once


def test_a_span_whose_row_no_series_counts_is_no_exemplar() -> None:
    store = MetricStore()
    rows = make("slow_syscall", 1, t_ns=_S, syscall=b"fsync", kind=0, basis=2, blocked_ns=9).rows
    SpanEncoder("boot", lambda t: t, ProcessResources({}), store).roots("slow_syscall", rows)
    assert [s for _, series in store.collect() for s in series if s.exemplars] == []


@pytest.mark.parametrize(("per_s", "schema", "error"), [(10**9, 0, 0.074), (10**6, 0, 0.049), (10**9, 5, 0.0062)])
def test_exponential_schemas_have_no_bounds_of_ours(per_s: int, schema: int, error: float) -> None:
    """The numbers of docs/metrics.md, "Native histograms"."""
    exponent = np.log2(2.0 ** np.arange(10, 40) / per_s)
    nearest = np.round(exponent * 2**schema) / 2**schema
    assert np.abs(2 ** (exponent - nearest) - 1) == pytest.approx(error, abs=0.0005)
