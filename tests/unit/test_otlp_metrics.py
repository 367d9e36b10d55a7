"""Folding rows into series, and series into points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as MetricMessage

from agent.batch import make
from agent.columns import NULL_I64
from agent.tables import TABLES
from exporters.aggregate import DRIFT_SPAN_NS, GAUGE_TTL_NS, OVERFLOW, SERIES_TTL_NS, MetricStore, Series
from exporters.metrics import MAX_SERIES, METRICS, Metric
from exporters.points import PointEncoder

_S = 10**9


def _series(store: MetricStore, name: str) -> list[Series]:
    return next((s for m, s in store.collect() if m.name == name), [])


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_the_registry_names_columns_that_exist(metric: Metric) -> None:
    columns = TABLES[metric.table].by_name
    named = [*metric.columns, *(metric.hist or ()), metric.value, metric.distinct, metric.client_only]
    assert [n for n in named if n and n not in columns] == []
    if metric.where:
        assert set(metric.where[1]) <= set(columns[metric.where[0]].names)
    assert metric.instrument in ("counter", "gauge", "histogram")
    if metric.instrument == "histogram":
        assert metric.unit in ("ns", "us")


def test_names_are_unique_both_ways() -> None:
    assert len({m.name for m in METRICS}) == len({m.prometheus for m in METRICS})
    assert len({(m.name, m.table) for m in METRICS}) == len(METRICS)
    for name in {m.name for m in METRICS}:
        entries = [m for m in METRICS if m.name == name]
        assert len({(m.unit, m.instrument, m.description, m.integral) for m in entries}) == 1
        assert len({(m.labels, m.columns) for m in entries}) == len(entries)


def test_the_clocks_metrics() -> None:
    store, table = MetricStore(), TABLES["clock_change"]
    forward, backward = (table.code("direction", way) for way in ("forward", "backward"))
    store.offer(make("clock_change", 5, t_ns=np.arange(5), kind=table.code("kind", "step"), size_ns=[700, -1500, -1600, 0, 99],
                     direction=[forward, backward, backward, -1, -1]))
    store.offer(make("clock_offset", 2, t_ns=[1, 2], ntp_offset_ns=[5, -2_500_000], leap_indicator=[0, 3], synchronised=[1, 0]))
    store.offer(make("clock_offset", 1, t_ns=3))
    daemon = TABLES["clock_daemon"]
    store.offer(make("clock_daemon", 2, t_ns=4, daemon=[b"chrony", b"sntp"], kind=[daemon.code("kind", k) for k in ("system", "source")],
                     source=[b"", b"ntp.example"], offset_ns=[1_000_000_000, 2_000_000_000]))
    jumps = {dict(s.attributes)["direction"]: s.value for s in _series(store, "ntp.jump.count")}
    assert jumps == {"forward": 1, "backward": 2}
    sizes = {dict(s.attributes)["direction"]: s for s in _series(store, "ntp.jump.size")}
    assert (sizes["backward"].count, sizes["backward"].low, sizes["backward"].high) == (2, 1500, 1600)
    assert (sizes["forward"].count, int(sizes["forward"].buckets[9])) == (1, 1)
    assert {dict(s.attributes)["tickscope.daemon"]: s.value for s in _series(store, "ntp.offset")} == {"kernel": -0.0025, "chrony": 1.0}
    assert [dict(s.attributes) for s in _series(store, "ntp.source.offset")] == [{"tickscope.daemon": "sntp", "tickscope.source": "ntp.example"}]
    assert [s.value for s in _series(store, "ntp.leap_indicator")] == [3]
    assert [s.value for s in _series(store, "ntp.sync_status")] == [0]
    names = {m.prometheus for m, _ in store.collect()}
    assert {"ntp_offset_seconds", "ntp_leap_indicator", "ntp_jump_count_total", "ntp_jump_size_nanoseconds", "ntp_sync_status"} <= names


def test_the_notices_metrics_count_what_came_since_the_first_row() -> None:
    store, socket = MetricStore(), TABLES["notice_status"].code("channel", "socket")
    store.offer(make("notice_status", 2, t_ns=[1, 2], channel=socket, sent=[0, 7], pending=[0, 3], acknowledged=[0, 4], subscribers=[0, 2]))
    store.offer(make("notice_status", 1, t_ns=3, channel=1, sent=5))
    assert [s.value for s in _series(store, "tickscope.clock.pending_reanchorings")] == [3]
    assert {dict(s.attributes)["tickscope.channel"]: s.value for s in _series(store, "tickscope.clock.notices")} == {"socket": 7, "exec": 0}


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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=60), st.integers(1, 5))
def test_folding_does_not_depend_on_how_rows_are_batched(rows: list[tuple[int, int, int]], pieces: int) -> None:
    def total(sizes: list[list[tuple[int, int, int]]]) -> dict[object, float]:
        store = MetricStore()
        for part in sizes:
            if part:
                who, kind, count = zip(*part, strict=True)
                store.offer(make("tcp_retransmit", len(part), t_ns=1, comm=[b"p%d" % w for w in who], kind=[min(k, 2) for k in kind], count=count))
        return {s.attributes: s.value for s in _series(store, "tickscope.tcp.retransmits")}

    assert total([rows]) == total([rows[i::pieces] for i in range(pieces)])


def test_unknown_values_are_left_out_not_counted_as_zero() -> None:
    store = MetricStore()
    store.offer(make("limiter_decision", 3, t_ns=1, wait_ns=[NULL_I64, 4, NULL_I64], duration_ns=NULL_I64))
    assert [s.count for s in _series(store, "tickscope.limiter.wait")] == [1]
    assert _series(store, "tickscope.limiter.decision.duration") == []
    assert [s.value for s in _series(store, "tickscope.limiter.decisions")] == [3]


def test_series_beyond_the_bound_go_into_one_that_says_so() -> None:
    store = MetricStore(max_series=5)
    store.offer(make("tcp_reset", 97, t_ns=1, comm=[b"c%d" % i for i in range(97)]))
    store.offer(make("tcp_reset", 97, t_ns=2, comm=[b"c%d" % i for i in range(97)]))
    series = {s.attributes: s.value for s in _series(store, "tickscope.tcp.resets")}
    assert len(series) == 5
    assert series[OVERFLOW] == 2 * 93
    assert sum(series.values()) == 2 * 97


def _drops(store: MetricStore, devices: list[bytes], t_ns: int, drops: object) -> None:
    kind = TABLES["socket_queue"].code("kind", "qdisc")
    store.offer(make("socket_queue", len(devices), t_ns=t_ns, kind=kind, device=devices, comm=b"", queue=1, drops=drops))


def test_running_totals_and_last_values_beyond_the_bound_are_left_out_and_counted() -> None:
    """Totals of two devices in one series would be a reset at each turn: 60 polls of two constant ones made 60,000,005 drops."""
    store, polls, beyond = MetricStore(), 60, 2100 - (MAX_SERIES - 1)
    _drops(store, [b"past%d" % i for i in range(2100)], 1, 0)
    store.collect()
    for poll in range(polls):
        _drops(store, [b"one", b"two"], 2 + poll, [1_000_000, 5])
        store.collect()
    for name in ("tickscope.socket.queue.drops", "tickscope.socket.queue"):
        series = _series(store, name)
        assert len(series) == MAX_SERIES - 1
        assert OVERFLOW not in [s.attributes for s in series]
    assert sum(s.value for s in _series(store, "tickscope.socket.queue.drops")) == 0
    assert store.losses() == {"series_limit": 2 * (beyond + 2 * polls)}  # of the drops and of the queue's length


def test_who_was_not_seen_for_long_makes_room() -> None:
    store = MetricStore(max_series=4)

    def reset(*names: bytes, t_ns: int) -> set[object]:
        store.offer(make("tcp_reset", len(names), t_ns=t_ns, comm=names))
        return {dict(s.attributes).get("process.command", "overflow") for s in _series(store, "tickscope.tcp.resets")}

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
        assert {dict(s.attributes)["messaging.destination.name"].encode() for s in _series(store, "tickscope.queue.lag")} == set(names)
    assert store.losses() == {"series_limit": 0}


def _points(encoder: PointEncoder, store: MetricStore, now: int) -> dict[str, tuple[int, int, int]]:
    """(start, end, value) of the resets of each command, CLOCK_BOOTTIME ns."""
    messages = [MetricMessage.FromString(m) for m in encoder.encode([c for c in store.collect() if c[0].name == "tickscope.tcp.resets"], now)[0]]
    encoder.committed()
    points = [p for m in messages for p in m.sum.data_points]
    return {p.attributes[0].value.string_value: (p.start_time_unix_nano - _EPOCH, p.time_unix_nano - _EPOCH, p.as_int) for p in points}


_EPOCH = 1_700_000_000 * _S


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("between", [True, False])
def test_a_series_that_comes_back_begins_anew(temporality: str, between: bool) -> None:
    """Whether or not an export lay between its end and its return; what it counts anew follows what it had counted."""
    store, encoder, late = MetricStore(max_series=3), PointEncoder(temporality, lambda t: t + _EPOCH, 0), 2 * _S + SERIES_TTL_NS
    store.offer(make("tcp_reset", 9, t_ns=_S, comm=[b"a"] * 5 + [b"b"] * 4))
    assert _points(encoder, store, 2 * _S)["a"][1:] == (2 * _S, 5)
    store.offer(make("tcp_reset", 1, t_ns=late, comm=b"c"))
    if between:
        assert _points(encoder, store, late + _S) == {"c": (late if temporality == "cumulative" else 2 * _S, late + _S, 1)}
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
    store = MetricStore()
    hist = np.zeros((6, 64), np.uint32)
    hist[:, 3] = 1
    peers = np.frombuffer(b"".join(bytes(10) + b"\xff\xff\x0a\x00\x00" + bytes([i]) for i in range(6)), "V16")
    store.offer(make("tcp_rtt", 6, t_ns=1, comm=b"s", role=[0, 0, 0, 1, 1, 1], daddr=peers, hist=hist))
    assert sorted(s.count for s in _series(store, "tickscope.tcp.rtt")) == [1, 1, 1, 3]


def test_a_gauge_is_the_newest_value_and_goes_stale() -> None:
    store = MetricStore()
    store.offer(make("queue_lag", 2, t_ns=[2 * _S, _S], destination=b"q", lag_messages=[5, 9]))
    assert [s.value for s in _series(store, "tickscope.queue.lag")] == [5]
    store.offer(make("queue_lag", 1, t_ns=3 * _S + GAUGE_TTL_NS, destination=b"other", lag_messages=1))
    assert [dict(s.attributes)["messaging.destination.name"] for s in _series(store, "tickscope.queue.lag")] == ["other"]


@pytest.mark.parametrize("batches", [1, 4])
def test_a_gauge_is_not_shown_while_its_newest_row_says_that_it_is_not_known(batches: int) -> None:
    """As when a time daemon or a broker is gone; who never had a value has no series either."""
    def shown(times: list[int], values: list[object]) -> list[float]:
        store = MetricStore()
        for part in np.array_split(np.arange(len(times)), batches):
            given = [(times[i], values[i]) for i in part]
            store.offer(make("queue_lag", len(given), t_ns=[t for t, _ in given], destination=b"q", lag_messages=[v for _, v in given]))
            store.collect()
        return [s.value for s in _series(store, "tickscope.queue.lag")]

    assert shown([1, 2, 3, 4], [5, 6, 7, NULL_I64]) == []
    assert shown([1, 2, 3, 4], [5, NULL_I64, NULL_I64, 8]) == [8]
    assert shown([1, 2, 4, 3], [5, 6, 7, NULL_I64]) == [7]
    assert shown([1, 2, 3, 4], [NULL_I64] * 4) == []


def test_a_running_total_counts_from_its_first_sight_and_over_a_reset() -> None:
    store = MetricStore()
    for hits in (100, 107, 3):
        store.offer(make("probe_status", 1, t_ns=1, probe=b"tcp", hits=hits))
        store.collect()
    assert [s.value for s in _series(store, "tickscope.probe.hits")] == [7 + 3]


def test_a_finding_is_counted_once() -> None:
    store = MetricStore()
    for _ in range(3):
        store.offer(make("finding", 2, t_ns=1, finding_id=[b"a", b"b"], cause=b"tls"))
        store.collect()
    assert [s.value for s in _series(store, "tickscope.findings")] == [2]


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
        (message,), points = encoder.encode([c for c in store.collect() if c[0].name == "tickscope.tcp.resets"], now)
        encoder.committed()
        point = MetricMessage.FromString(message).sum.data_points[0]
        seen.append((point.time_unix_nano - offset[0], point.time_unix_nano - point.start_time_unix_nano, point.as_int, points))
        offset[0] -= 60 * _S
    assert seen == [(10 * _S, 10 * _S, 1, 1), (20 * _S, 10 * _S, 1, 1)]


def test_what_was_not_committed_is_in_the_next_delta() -> None:
    store, encoder = MetricStore(), PointEncoder("delta", lambda t: t + 1_700_000_000 * _S, 0)
    store.offer(make("tcp_reset", 3, t_ns=1))
    encoder.encode(store.collect(), _S)
    store.offer(make("tcp_reset", 4, t_ns=2))
    (message,), _ = encoder.encode(store.collect(), 2 * _S)
    assert MetricMessage.FromString(message).sum.data_points[0].as_int == 7
    encoder.committed()
    assert encoder.encode(store.collect(), 3 * _S) == ([], 0)
