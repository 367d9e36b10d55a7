"""Queues whose consumers stop, hold something back or are overrun: what is said, and that nothing is said without its
rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.batch import make
from agent.correlate.catalogue import dtypes
from agent.correlate.correlator import Correlator
from agent.correlate.outlier_bars import RATIO, bars
from agent.correlate.series import Series
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import PEER, START, T0, UNTIL, Host, S, code, latest, peer, run

CONSUMERS = {b"worker-1": 501, b"worker-2": 502, b"worker-3": 503}
CLIENTS = {**CONSUMERS, b"producer": 504}


def talk(host: Host, a: float, b: float, *who: bytes) -> None:
    """Clients that exchange 30 segments a second with the server."""
    t = T0 + (np.arange(a, b) * S).astype(np.int64)
    for comm in who:
        host.add(
            "tcp_rtt",
            t_ns=t,
            pid=CLIENTS[comm],
            comm=comm,
            role="client",
            peer=PEER,
            rtt=(30, 40, 45, 50),
            interval_ns=S,
        )


def well(a: float, b: float, host: Host | None = None, **more: Any) -> Host:
    host = host or Host()
    usual: dict[str, Any] = {
        "lag": 0,
        "age": np.nan,
        "incoming": 40,
        "oldest_pending_s": 0.02,
        "pending": 2,
        "consumers": 3,
    }
    host.queue(a, b, **(usual | more))
    talk(host, a, b, *CONSUMERS)
    return host


def one_stops(host: Host, a: int, b: int, **more: Any) -> None:
    """Its message gets older; the others take the rest."""
    ages = np.arange(b - a) + 0.4
    now: dict[str, Any] = {
        "lag": 0,
        "age": np.nan,
        "incoming": 40,
        "oldest_pending_s": ages,
        "pending": 4,
        "consumers": 3,
    }
    host.queue(a, b, **(now | more))
    talk(host, a, b, b"worker-1", b"worker-3")


def found(host: Host) -> list[dict[str, Any]]:
    return latest(run(host, UNTIL))


def test_a_consumer_that_stopped_with_what_it_holds_is_named() -> None:
    host = well(0, 30)
    one_stops(host, 30, 36)
    well(36, UNTIL, host)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "consumer_stopped")
    assert (finding["culprit_pid"], finding["culprit_comm"]) == (502, "worker-2")
    assert "worker-2 pid 502 stopped" in str(finding["sentence"])


def test_a_message_that_one_consumer_holds_is_no_load_though_more_arrives() -> None:
    host = well(0, 30)
    one_stops(host, 30, 36, incoming=60, out=60, idle_consumer=b"worker-2", idle_s=np.arange(6) + 0.4)
    well(36, UNTIL, host)
    (finding,) = found(host)
    assert (finding["cause"], finding["culprit_pid"]) == ("consumer_stopped", 502)


def test_its_name_with_the_server_is_reported_too_and_reports_one_of_several() -> None:
    host = well(0, 30)
    one_stops(host, 30, 36, holder=b"worker-2")
    talk(host, 0, 30, b"worker-1")
    well(36, UNTIL, host)
    (finding,) = found(host)
    assert (finding["culprit_pid"], finding["culprit_object"]) == (502, "worker-2")


def test_a_client_that_happens_to_keep_quiet_is_no_consumer_that_stopped() -> None:
    """All of them got slow; each asks for more now and then, as the server says. What became silent is a process of
    another kind.
    """
    host = well(0, 30, idle_consumer=b"a", idle_s=0.1, consumers=2)
    late = np.arange(12) * 0.6 + 0.6
    host.queue(
        30,
        42,
        lag=(late * 30).astype(int),
        age=late,
        incoming=40,
        out=18,
        pending=8,
        consumers=2,
        oldest_pending_s=2.0,
        idle_consumer=np.where(np.arange(12) % 2, b"a", b"b"),
        idle_s=2.4,
    )
    talk(host, 30, 42, b"worker-1", b"worker-3")
    well(42, UNTIL, host, idle_consumer=b"a", idle_s=0.1, consumers=2)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"], finding["culprit_pid"]) == ("queue_lag", "consumer_slow", -(2**63))


def test_without_the_network_nobody_is_named() -> None:
    host = well(0, 30)
    one_stops(host, 30, 36)
    well(36, UNTIL, host).without("tcp_rtt")
    (finding,) = found(host)
    assert (finding["cause"], finding["culprit_comm"]) == ("consumer_stopped", "")
    assert float(str(finding["confidence"])) < 0.7


def test_a_consumer_that_was_killed_with_nothing_in_its_hands() -> None:
    host = well(0, 30, idle_consumer=b"worker-1", idle_s=0.1)
    host.queue(
        30,
        38,
        lag=0,
        age=np.nan,
        incoming=40,
        oldest_pending_s=0.02,
        pending=2,
        consumers=3,
        idle_consumer=b"worker-2",
        idle_s=np.arange(8) + 0.5,
    )
    talk(host, 30, 38, b"worker-1", b"worker-3")
    well(38, UNTIL, host, idle_consumer=b"worker-3", idle_s=0.1)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"], finding["culprit_pid"], finding["culprit_object"]) == (
        "queue_lag",
        "consumer_stopped",
        502,
        "worker-2",
    )
    assert "was idle for" in str(finding["sentence"])


def test_a_consumer_that_another_one_replaces_is_none_of_our_business() -> None:
    host = well(0, 30, idle_consumer=b"worker-1", idle_s=0.1)
    well(30, UNTIL, host, idle_consumer=b"worker-2", idle_s=np.arange(30) + 0.5, consumers=4)
    assert found(host) == []


@pytest.mark.parametrize("killed_s", [20.0, 30.2])
def test_who_had_ended_before_a_message_was_delivered_does_not_hold_it(killed_s: float) -> None:
    host = well(0, 30)
    one_stops(host, 30, 40)
    well(40, UNTIL, host)
    host.rtt(0, killed_s, to=PEER, pid=77, comm=b"api")
    its = {"pid": 77, "comm": b"api", "proc_start_ns": START, "kind": "killed", "signal": 9}
    host.add("process_event", at=killed_s, **its, sender_comm=b"operator")
    causes = [one["cause"] for one in found(host) if one["symptom"] == "queue_lag"]
    assert causes == (["process_killed"] if killed_s > 30 else ["consumer_stopped"])


def test_all_of_them_stopped_and_all_of_them_slow() -> None:
    stop = np.arange(6) + 0.5
    for out, cause in ((0.0, "consumer_stopped"), (8.0, "consumer_slow")):
        host = well(0, 30)
        host.queue(
            30,
            36,
            lag=(stop * 40).astype(int),
            age=stop,
            incoming=40,
            out=out,
            oldest_pending_s=stop,
            pending=3,
            consumers=3,
        )
        if out:
            talk(host, 30, 36, *CONSUMERS)
        well(36, UNTIL, host)
        talk(host, 0, UNTIL, b"producer")  # if nobody talks, nobody is known to be silent
        (finding,) = found(host)
        assert finding["cause"] == cause
        silent = "3 clients stopped talking to the server" in str(finding["sentence"])
        assert silent == (cause == "consumer_stopped"), finding["sentence"]


def test_who_happens_to_be_silent_while_all_are_slow_is_not_who_stopped() -> None:
    behind = np.arange(6) + 0.5
    host = well(0, 30)
    host.queue(
        30,
        36,
        lag=(behind * 40).astype(int),
        age=behind,
        incoming=40,
        out=8.0,
        oldest_pending_s=0.5,
        pending=3,
        consumers=3,
    )
    talk(host, 30, 36, b"worker-1", b"worker-3")
    well(36, UNTIL, host)
    (finding,) = found(host)
    assert finding["cause"] == "consumer_slow"


def test_what_is_made_up_for_at_the_end_does_not_change_the_cause() -> None:
    stop = np.arange(6) + 0.5
    host = well(0, 30)
    host.queue(
        30,
        36,
        lag=(stop * 40).astype(int),
        age=stop,
        incoming=40,
        out=0.0,
        oldest_pending_s=stop,
        pending=3,
        consumers=3,
    )
    host.queue(
        36, 38, lag=[100, 40], age=[2.5, 1.5], incoming=40, out=140, oldest_pending_s=1.0, pending=3, consumers=3
    )
    well(38, UNTIL, host)
    (finding,) = found(host)
    assert finding["cause"] == "consumer_stopped"


@pytest.mark.parametrize(("waits_ns", "cause"), [(0, "consumer_slow"), (700_000_000, "cpu")])
def test_consumers_that_get_no_cpu_are_reported_from_slow_ones(waits_ns: int, cause: str) -> None:
    host = well(0, 30)
    stop = np.arange(6) + 0.5
    host.queue(
        30,
        36,
        lag=(stop * 40).astype(int),
        age=stop,
        incoming=40,
        out=8.0,
        oldest_pending_s=stop,
        pending=3,
        consumers=3,
    )
    talk(host, 30, 36, *CONSUMERS)
    t = T0 + np.arange(0, UNTIL) * S
    for pid in CONSUMERS.values():
        host.add(
            "syscall_latency",
            t_ns=t,
            pid=pid,
            comm=b"worker",
            basis="blocked",
            interval_ns=S,
            run_queue_ns=np.where((t >= T0 + 30 * S) & (t < T0 + 37 * S), waits_ns, 0) + 6_000_000,
        )
    well(36, UNTIL, host)
    (finding,) = found(host)
    assert finding["cause"] == cause


def test_a_burst_that_the_consumers_cannot_follow() -> None:
    host = well(0, 30)
    grown = np.arange(5) * 0.11 + 0.06
    host.queue(
        30,
        35,
        lag=(grown * 600).astype(int),
        age=grown,
        incoming=650,
        out=580,
        oldest_pending_s=grown,
        pending=12,
        consumers=3,
    )
    talk(host, 30, 35, *CONSUMERS)
    well(35, UNTIL, host)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "load")
    assert float(str(finding["confidence"])) >= 0.8


def test_a_burst_that_takes_longer_to_work_off_than_to_arrive() -> None:
    host = well(0, 30)
    lag = np.array([600, 1300, 1900, 1700, 1300, 1000, 700, 400, 200])
    age = np.arange(9) * 0.6 + 0.4
    incoming = np.array([900, 1300, 1200, *[40] * 6])
    host.queue(30, 39, lag=lag, age=age, incoming=incoming, out=580, oldest_pending_s=age, pending=12, consumers=3)
    talk(host, 30, 39, *CONSUMERS)
    well(39, UNTIL, host)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "load")
    assert "the arriving messages rose" in str(finding["sentence"])


def test_queues_of_one_name_in_two_clusters_are_told_apart() -> None:
    host = Host()
    for cluster, port in ((b"east", 6399), (b"west", 6400)):
        where = {"cluster": cluster, "peer": np.frombuffer(peer("127.0.0.1", port), "V18")}
        well(0, 30, host, **where)
        well(30, UNTIL, host, lag=np.arange(UNTIL - 30) * 40, age=np.arange(UNTIL - 30) * 1.0, out=0, **where)
    sentences = [str(finding["sentence"]) for finding in found(host)]
    assert len(sentences) == 2
    for port in (6399, 6400):
        assert any(f"at 127.0.0.1:{port}" in sentence for sentence in sentences), sentences


def test_a_queue_of_the_same_name_in_another_cluster_is_no_evidence() -> None:
    host, lag = Host(), np.arange(UNTIL - 30)
    where: list[dict[str, Any]] = [
        {"cluster": cluster, "peer": np.frombuffer(peer("127.0.0.1", port), "V18"), "rebalances": rebalances}
        for cluster, port, rebalances in ((b"east", 6399, 3), (b"west", 6400, 50))
    ]
    well(0, 30, host, **where[0])
    well(0, UNTIL, host, **where[1])
    host.queue(30, UNTIL, lag=lag * 40, age=lag * 1.0, incoming=40, out=0, consumers=3, **where[0])
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "consumer_stopped")


@pytest.mark.parametrize(("failure", "cause"), [("no_answer", "broker_slow"), ("refused", "broker_down")])
def test_what_piled_up_while_the_server_was_away_is_its_doing(failure: str, cause: str) -> None:
    host = well(0, 30)
    host.queue(
        30,
        34,
        lag=-(2**63),
        age=np.nan,
        status=b"down",
        failure=code("queue_lag", "failure", failure),
        reason=b"redis 127.0.0.1:6399: it is so",
        poll_ns=S // 2,
    )
    age = np.array([3.5, 3.2, 3.1, 2.9, 2.0])
    host.queue(
        34, 39, lag=(age * 40).astype(int), age=age, incoming=40, out=5, oldest_pending_s=age, pending=12, consumers=3
    )
    well(39, UNTIL, host)
    (finding,) = found(host)
    assert finding["cause"] == cause


def test_two_polls_without_an_answer_are_no_outage_of_the_time_between_them() -> None:
    host, lag = well(0, 30), np.arange(UNTIL - 30)
    for at in (29.5, 44.5):
        failed = {"status": b"down", "failure": code("queue_lag", "failure", "no_answer"), "poll_ns": S // 2}
        host.queue(at, at + 1, lag=-(2**63), age=np.nan, reason=b"redis 127.0.0.1:6399: no answer", **failed)
    host.queue(30, UNTIL, lag=lag * 40, age=lag * 1.0, incoming=40, out=0, consumers=3)
    causes = {finding["cause"] for finding in found(host) if finding["symptom"] == "queue_lag"}
    assert causes == {"consumer_stopped"}


def test_polls_that_always_take_long_are_no_outage() -> None:
    host = well(0, 30, poll_ms=600)
    lag = np.arange(UNTIL - 30)
    host.queue(30, UNTIL, lag=lag * 40, age=lag * 1.0, incoming=40, out=0, consumers=3, poll_ms=600)
    causes = {finding["cause"] for finding in found(host) if finding["symptom"] == "queue_lag"}
    assert causes == {"consumer_stopped"}


@pytest.mark.parametrize("poll_ms", [0.7, 600.0])
def test_one_message_that_waits_is_found_also_where_polls_always_take_long(poll_ms: float) -> None:
    """Six seconds are too short for a lasting rise."""
    host = well(0, 30, poll_ms=poll_ms)
    one_stops(host, 30, 36, poll_ms=poll_ms)
    well(36, UNTIL, host, poll_ms=poll_ms)
    assert [finding["cause"] for finding in found(host)] == ["consumer_stopped"]
    host = well(0, 30, idle_consumer=b"worker-1", idle_s=0.1, poll_ms=poll_ms)
    well(30, 38, host, idle_consumer=b"worker-2", idle_s=np.arange(8) + 0.5, poll_ms=poll_ms)
    well(38, UNTIL, host, idle_consumer=b"worker-3", idle_s=0.1, poll_ms=poll_ms)
    assert [finding["symptom"] for finding in found(host)] == ["queue_lag"]


@pytest.mark.parametrize(("usual_ms", "poll_ms"), [(600.0, 1150.0), (0.7, 1150.0), (0.7, 6000.0)])
def test_an_age_within_the_time_of_its_poll_is_the_servers(usual_ms: float, poll_ms: float) -> None:
    host = well(0, 30, poll_ms=usual_ms)
    well(30, 32, host, poll_ns=int(poll_ms * 1e6), oldest_pending_s=[poll_ms / 1000, poll_ms / 1000 + 0.9])
    well(32, UNTIL, host, poll_ms=usual_ms)
    assert "queue_lag" not in {finding["symptom"] for finding in found(host)}


def test_a_minute_of_polls_of_each_watched_queue_of_1000_is_kept_as_evidence() -> None:
    """And of the server, whose rows are those of all queues."""
    correlator, config = Correlator(), CorrelatorConfig()
    names = [b"q%03d" % n for n in range(1000)]  # the first ones are watched
    for second in range(70):
        rows = {"system": b"redis", "peer": PEER, "destination": names, "status": b"ok", "lag_messages": 3}
        correlator.feed(make("queue_lag", 1000, t_ns=T0 + second * S, poll_ns=2_000_000, **rows))
        correlator.advance(T0 + (second + 1) * S)
    view = correlator._view
    kept = view.rings["queue_lag"].between(T0 + 9 * S, T0 + 69 * S)["destination"].tolist()
    assert [kept.count(name) for name in names[: config.subjects]] == [61] * config.subjects
    assert len(view.polls([PEER[0].tobytes()], T0 + 9 * S, T0 + 69 * S)) == 61
    assert config.keep_polls * dtypes()["queue_lag"].itemsize <= 13_000_000


def test_ages_spread_as_widely_as_is_stated_exceed_the_bar_less_than_once_in_a_day() -> None:
    """100,000 polls of a healthy queue: ages are log-normal with sigma 1, half of the polls find nothing waiting."""
    rng, late, polls = np.random.default_rng(7), 0, 0
    slot = np.array([0])
    for _ in range(20):
        series = Series(("age_s", "lag", "out"), 8)
        for second in range(5_000):
            series.begin(second)
            series.slot(("queue",), second)
            waits = rng.random() < 0.5
            age = float(rng.lognormal(np.log(0.2), 1.0)) if waits else 0.0
            series.put(second, slot, age_s=np.array([age]), lag=np.array([8.0 if waits else 0.0]), out=np.array([20.0]))
            if second >= 120 and second % 7 == 0:
                polls += 7
                late += int(age > bars(series, "age_s", "lag", slot, second, 10)[0]) * 7
    assert polls > 90_000
    assert late <= 7


def test_a_quiet_queue_has_a_high_bar() -> None:
    """Two messages in two minutes: that one waits for seconds may be what each does."""
    series, slot = Series(("age_s", "lag", "out"), 8), np.array([0])
    for second in range(120):
        series.begin(second)
        series.slot(("queue",), second)
        series.put(
            second, slot, age_s=np.array([0.0]), lag=np.array([0.0]), out=np.array([1.0 if second in (20, 80) else 0.0])
        )
    assert bars(series, "age_s", "lag", slot, 120, 10)[0] == RATIO / 2


def deleted(host: Host, a: int, b: int, errors: bytes = b"NOGROUP 7") -> None:
    """Polls of a group that was deleted."""
    nothing: dict[str, Any] = dict.fromkeys(("pending", "consumers"), -(2**63))
    host.queue(
        a,
        b,
        lag=-(2**63),
        age=np.nan,
        oldest_pending_s=np.nan,
        in_per_s=np.nan,
        out_per_s=np.nan,
        status=b"gone",
        reason=b"the group was deleted; 3 s ago",
        errors=errors,
        **nothing,
    )


@pytest.mark.parametrize("stopped_s", [0, 6])
@pytest.mark.parametrize("asked_for", [True, False])
def test_a_queue_that_is_deleted_is_not_well_again(stopped_s: int, asked_for: bool) -> None:
    """Its lag is gone, and so are its messages. Clients that ask for it are refused."""
    host = well(0, 30)
    stop = np.arange(stopped_s) + 0.5
    host.queue(
        30,
        30 + stopped_s,
        lag=(stop * 40).astype(int),
        age=stop,
        incoming=40,
        out=0.0,
        oldest_pending_s=stop,
        pending=3,
        consumers=3,
    )
    deleted(host, 30 + stopped_s, UNTIL, b"NOGROUP 7" if asked_for else b"")
    out = found(host)
    if not stopped_s and not asked_for:
        assert out == []
        return
    (finding,) = out
    assert (finding["symptom"], finding["state"]) == ("queue_lag", "open")
    assert finding["cause"] == ("queue_deleted" if asked_for else "consumer_stopped")
    assert ("was deleted while clients used it" in str(finding["sentence"])) == asked_for


def test_a_deleted_queue_that_is_made_again_is_well() -> None:
    host = well(0, 30)
    deleted(host, 30, 34)
    well(34, UNTIL, host)
    (finding,) = found(host)
    assert (finding["cause"], finding["state"]) == ("queue_deleted", "closed")


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        (b"fail-over: writes of at least 3,298 bytes of the replication stream were lost", ""),
        (b"restarted or replaced: at least 23 entries are gone", "replaced"),
    ],
)
def test_what_a_broker_lost_at_a_fail_over_is_a_finding_with_its_bound(reason: bytes, detail: str) -> None:
    host = well(0, 30)
    host.queue(30, 50, lag=4, age=0.1, incoming=40, status=b"rewound", reason=reason, consumers=3)
    well(50, UNTIL, host)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"], finding["cause_detail"]) == ("entries_lost", "failover", detail)
    assert reason.decode() in str(finding["sentence"])


def test_a_group_that_was_set_back_lost_nothing() -> None:
    host = well(0, 30)
    host.queue(
        30,
        50,
        lag=4,
        age=0.1,
        incoming=40,
        status=b"rewound",
        reason=b"the group went back from 9-0 to 2-0",
        consumers=3,
    )
    well(50, UNTIL, host)
    assert found(host) == []


def celery(host: Host, a: float, b: float, **more: Any) -> None:
    """A queue of which only the length is known while it is read: agent/queues/brokers/celery.py."""
    unknown = dict.fromkeys(("in_per_s", "out_per_s", "oldest_pending_s"), np.nan)
    its = {"system": b"celery", "consumer_group": b"", "consumers": -(2**63), "pending": 0, **unknown}
    host.queue(a, b, **{"lag": 0, "age": np.nan, **its, **more})


@pytest.mark.parametrize(
    ("before", "standing"),
    [({}, {"status": b"ok"}), ({"lag": 40}, {"status": b"stalled"})],
)
def test_the_workers_of_a_celery_queue_that_stop_are_found_by_the_rows_alone(
    before: dict[str, Any], standing: dict[str, Any]
) -> None:
    """Of a queue that is usually empty, and of one with a usual backlog, of which the age is not known."""
    host = Host()
    celery(host, 0, 30, **before)
    seconds = np.arange(22)
    rates = {"in_per_s": np.where(seconds, 10.0, np.nan), "out_per_s": np.where(seconds, 0.0, np.nan)}
    celery(host, 30, 52, lag=before.get("lag", 0) + 10 + 10 * seconds, age=seconds, **rates, **standing)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "consumer_stopped")
    assert "celery queue orders" in str(finding["subject"])


def test_consumers_that_never_asked_for_a_message_are_named_by_the_rows_alone() -> None:
    """Nothing more arrives, and none was ever read: no rate shows that they stopped."""
    host, seconds = Host(), np.arange(22)
    its = {"system": b"nats", "consumer_group": b"slow", "consumers": -(2**63), "pending": 0, "incoming": 0, "out": 0}
    host.queue(0, 30, lag=0, age=np.nan, **its)
    host.queue(30, 40, lag=50, age=seconds[:10] + 1, **its)
    reasons = np.array([f"no consumer requested messages for {s} s, 50 undelivered".encode() for s in seconds[10:]])
    host.queue(40, 52, lag=50, age=seconds[10:] + 1, **its, status=b"stopped", reason=reasons)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "consumer_stopped")
    assert "because no consumer requested messages for " in str(finding["sentence"])


def test_a_celery_queue_that_grows_while_it_is_read_is_found_by_its_length() -> None:
    host = Host()
    celery(host, 0, 30, lag=20)
    celery(host, 30, 52, lag=20 + 30 * np.arange(22))
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", "unknown")


def removing(host: Host, a: int, b: int, total: Any, **more: Any) -> Host:
    """Polls of a group whose messages are removed before it reads them."""
    its: dict[str, Any] = {"lag": 50, "age": 5.0, "incoming": 40, "oldest_pending_s": 0.02, "pending": 2}
    host.queue(a, b, removed=total, **(its | {"out": 40, "consumers": 3} | more))
    return host


def losses(host: Host) -> list[dict[str, Any]]:
    return [one for one in found(host) if one["symptom"] == "entries_lost"]


@pytest.mark.parametrize("system", [b"redis", b"kafka", b"nats"])
def test_messages_that_are_removed_before_they_are_read_are_a_finding(system: bytes) -> None:
    """Once, whatever is known of the consumers."""
    its: dict[str, Any] = {"system": system}
    host = removing(Host(), 0, 30, 7, **its)
    removing(host, 30, UNTIL, 19, **its)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"], finding["state"]) == ("entries_lost", "unknown", "closed")
    sentence, by = str(finding["sentence"]), {b"redis": "XTRIM", b"kafka": "retention", b"nats": "the stream's limits"}
    assert sentence.startswith(f"12 messages of {system.decode()} queue orders group workers were removed by ")
    assert by[system] in sentence and "before they were read from " in sentence


@pytest.mark.parametrize(
    ("status", "reason", "cause"),
    [
        (b"stopped", b"no consumer for 40 s, 50 undelivered", "consumer_stopped"),
        (b"stalled", b"nothing read for 40 s, 50 undelivered; deleted in 3 s", "consumer_stopped"),
        (b"lagging", b"lag grew from 3 to 50 in 10 s; deleted in 3 s", "consumer_slow"),
    ],
)
def test_messages_that_are_removed_at_once_have_the_cause_of_the_queues_status(
    status: bytes, reason: bytes, cause: str
) -> None:
    """As Kafka removes them, a segment at a time."""
    its = {"system": b"kafka", "status": status, "reason": reason}
    host = removing(removing(Host(), 0, 30, 0, **its), 30, UNTIL, 23, **its)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("entries_lost", cause)
    assert f"because {reason.decode().partition(';')[0].partition(',')[0]}" in str(finding["sentence"])


@pytest.mark.parametrize(
    ("cause", "more"),
    [
        ("consumer_stopped", {"consumers": 0, "out": 0.0}),
        ("consumer_stopped", {"out": 0.0}),
        ("consumer_slow", {"out": 9.0}),
    ],
)
def test_removed_messages_of_a_group_that_is_behind_have_its_cause(cause: str, more: dict[str, Any]) -> None:
    """It was behind before the agent began to watch it, so that nothing else is unusual."""
    host = removing(Host(), 0, 30, 0, **more)
    removing(host, 30, 36, 31 * np.arange(1, 7), **more)
    removing(host, 36, UNTIL, 186, **more)
    (finding,) = losses(host)
    assert finding["cause"] == cause
    assert "186 messages of redis queue orders group workers were removed" in str(finding["sentence"])


def test_a_loss_names_the_finding_of_a_group_that_stopped_before() -> None:
    host, stop = removing(Host(), 0, 30, 0, lag=0, age=np.nan), np.arange(20)
    late: dict[str, Any] = {"lag": 40 * stop, "age": stop + 0.4, "out": 0.0, "oldest_pending_s": stop + 0.4}
    late |= {"status": np.where(stop < 10, b"ok", b"stalled"), "reason": b"nothing read for 10 s, 400 undelivered"}
    removing(host, 30, 50, np.where(stop < 10, 0, 40 * (stop - 9)), **late)
    removing(host, 50, UNTIL, 400, lag=0, age=np.nan)
    (finding,) = found(host)
    assert (finding["symptom"], finding["cause"]) == ("entries_lost", "consumer_stopped")
    assert "were removed" in str(finding["sentence"])


@pytest.mark.parametrize(
    "totals",
    [
        [7] * 30,  # before the agent began to watch it
        [40] * 10 + [0] * 10 + [5] * 0 + [0] * 10,  # the agent was started again
        [-(2**63)] * 10 + [40] * 20,  # it is known only now
        [40] * 10 + [-(2**63)] * 10 + [40] * 10,  # and not at every poll
    ],
)
def test_neither_a_first_poll_nor_a_total_that_begins_anew_is_a_loss(totals: list[int]) -> None:
    assert losses(removing(removing(Host(), 0, 20, totals[0]), 20, 50, np.array(totals))) == []


def test_a_loss_while_the_server_did_not_answer_is_found_afterwards() -> None:
    host = removing(Host(), 0, 20, 3)
    removing(host, 40, UNTIL, 20)
    (finding,) = losses(host)
    assert "17 messages" in str(finding["sentence"])
