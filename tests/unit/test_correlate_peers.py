"""Peers whose round trips rise, or to which segments are lost, where no limiter asks them; and what busy, varying hosts
do without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.correlate.inbox import compact
from agent.correlate.peers import PeerWatch
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import APP_PID, MS, START, T0, Host, S, code, latest, peer, run

NEAR, FAR = 4026531840, 4026532999
API = peer("10.0.0.2", 443)
UNTIL = 60


def asked(
    host: Host,
    at: np.ndarray,
    us: object,
    wait_ms: object,
    to: bytes = API,
    netns: int = NEAR,
    pid: int = APP_PID,
    **more: object,
) -> None:
    """By one row a second: round trips to the peer, and the longest wait for it."""
    us = np.broadcast_to(np.asarray(us, np.int64), len(at))
    host.add(
        "tcp_rtt",
        at=at,
        pid=pid,
        proc_start_ns=START,
        netns=netns,
        role="client",
        saddr=peer("10.0.0.1", 1)[:16],
        sport=41000,
        peer=to,
        rtt=(20, us, us, us),
        **more,
    )
    host.add(
        "syscall_latency",
        at=at,
        pid=pid,
        basis="blocked",
        kind="waiting",
        peer=to,
        interval_ns=S,
        count=20,
        max_ns=(np.broadcast_to(np.asarray(wait_ms, np.float64), len(at)) * MS).astype(np.int64),
        run_queue_ns=1 * MS,
    )


def served(host: Host, at: np.ndarray, netns: int, by: bytes = API) -> None:
    """The peer is a process of this host."""
    host.add(
        "tcp_rtt",
        at=at,
        pid=77,
        comm=b"server",
        netns=netns,
        role="server",
        saddr=by[:16],
        sport=int.from_bytes(by[16:], "little"),
        peer=peer("10.0.0.1", 41000),
        rtt=(20, 200, 200, 200),
    )


def sent_again(
    host: Host,
    at: np.ndarray,
    netns: int = NEAR,
    state: bytes = b"established",
    to: bytes = API,
    kind: str = "data",
    **more: object,
) -> None:
    host.add("tcp_retransmit", at=at, pid=APP_PID, netns=netns, peer=to, kind=kind, state=state, count=1, **more)


SECONDS = np.arange(0, UNTIL) + 0.9
BAD = (SECONDS > 30) & (SECONDS < 36)


def lossy() -> Host:
    host = Host()
    asked(host, SECONDS, 300, np.where(BAD, 260, 6))
    sent_again(host, np.arange(30.2, 36, 0.7))
    return host


def pushed(produced_ms: np.ndarray, resent_at: np.ndarray, from_s: int = 0, bad: np.ndarray = BAD) -> Host:
    """Two consumers that wait for what a broker pushes to them, and a producer that waits for confirms from then on."""
    host = Host()
    for pid in (APP_PID + 1, APP_PID + 2):
        asked(host, SECONDS, 300, np.where(bad, 390, 167), pid=pid)
    asked(host, SECONDS[from_s:], 300, produced_ms[from_s:])
    sent_again(host, resent_at)
    return host


def cut(state: bytes = b"established") -> Host:
    """Nothing comes from the peer for eleven seconds: no round trip, no call that ends, and tries that are ever further
    apart.
    """
    host = Host()
    asked(host, SECONDS[(SECONDS < 30) | (SECONDS > 41)], 300, 6)
    asked(host, SECONDS, 200, 5, to=peer("10.0.0.3", 443))
    sent_again(host, 30 + np.array([0.2, 0.6, 1.4, 3.0, 6.2]), state=state)
    return host


def slow() -> Host:
    host = Host()
    asked(host, SECONDS, np.where(BAD, 260_000, 300), np.where(BAD, 300, 6))
    return host


@pytest.mark.parametrize(("host", "symptom"), [(lossy(), "network_loss"), (slow(), "network_rtt")])
def test_a_peer_is_reported_of_with_its_cause(host: Host, symptom: str) -> None:
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"]) == (symptom, symptom)
    assert (found["subject"], found["culprit_object"]) == ("10.0.0.2:443", "10.0.0.2:443")


LOST_AT = np.arange(30.2, 36, 0.7)
CONFIRMED_MS = np.where(BAD, 220, 6)


@pytest.mark.parametrize(("until_s", "every_s"), [(36, 0.7), (55, 1.7)])
def test_a_producer_that_waits_for_retransmissions_is_seen_beside_consumers_that_always_wait(
    until_s: int, every_s: float
) -> None:
    """For as long as it lasts, though it also waits in seconds in which nothing is retransmitted."""
    bad = (SECONDS > 30) & (until_s > SECONDS)
    host = pushed(np.where(bad, 220, 6), np.arange(30.2, until_s, every_s), bad=bad)
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"], found["subject"]) == ("network_loss", "network_loss", "10.0.0.2:443")
    assert found["end_ns"] >= T0 + (until_s - 3) * S


@pytest.mark.parametrize(
    ("produced_ms", "resent_at", "from_s"),
    [
        (CONFIRMED_MS, LOST_AT[:0], 0),
        (CONFIRMED_MS, LOST_AT[:1], 0),
        (np.full(UNTIL, 6), LOST_AT, 0),  # only the consumers waited longer, and not far longer
        (np.where(SECONDS % 7 < 1, 220, CONFIRMED_MS), LOST_AT, 0),  # it often waits that long
        (CONFIRMED_MS, LOST_AT, 25),  # it is hardly known
    ],
)
def test_beside_consumers_that_always_wait_a_producer_may_wait(
    produced_ms: np.ndarray, resent_at: np.ndarray, from_s: int
) -> None:
    assert latest(run(pushed(produced_ms, resent_at, from_s), UNTIL)) == []


def test_a_peer_of_which_nothing_is_received_is_reported_while_it_lasts() -> None:
    states = run(cut(), UNTIL)
    (found,) = latest(states)
    assert (found["symptom"], found["cause"]) == ("network_loss", "network_loss")
    assert "and nothing came from it any more" in str(found["sentence"])
    (early,) = latest(run(cut(), 34))
    assert early["state"] == "open"
    assert "waited up to 11 s" in str(found["sentence"])  # one finding, though the last tries are six seconds apart


def pooled(
    each: int, segments: int, every_s: float = 0.0, doubled: int = 0, kind: str = "data", waits_ms: object = 6
) -> Host:
    """A client that waits for many connections at once, so that no wait is for this peer; in the bad seconds so many of
    its segments are retransmitted, and, if every_s, some before, too. doubled: how many the peer has had already, as it
    reports a second later.
    """
    host = Host()
    asked(host, SECONDS, 300, waits_ms, segments=segments, doubled=np.where(np.roll(BAD, 1), doubled, 0))
    sent_again(host, np.repeat(SECONDS[BAD] - 0.5, each), kind=kind)
    if every_s:
        sent_again(host, np.arange(0.3, 30, every_s))
    return host


def of_others() -> Host:
    """The peer is a server of this host that also has a client elsewhere, to which segments are lost."""
    host = pooled(0, 40)
    served(host, SECONDS, FAR)
    its = {"saddr": np.frombuffer(API[:16], "V16"), "sport": 443}
    sent_again(host, np.repeat(SECONDS[BAD] - 0.5, 4), FAR, to=peer("10.9.9.9", 5), **its)
    return host


@pytest.mark.parametrize(
    ("host", "reported"),
    [
        (pooled(4, 40), True),
        (pooled(4, 40, every_s=7), True),  # some are lost at all times
        (pooled(4, 40, every_s=1), False),
        (pooled(4, 400), False),  # a share as in bulk transfers
        (pooled(1, 10), False),  # few
        (pooled(4, 0), False),  # the number of all segments is unknown
        (pooled(4, 40, doubled=4), False),  # none was lost
        (pooled(4, 40, kind="syn"), False),  # a full accept queue drops them
        (of_others(), False),
    ],
)
def test_many_lost_segments_need_no_wait(host: Host, reported: bool) -> None:
    found = [(one["symptom"], one["cause"], one["subject"]) for one in latest(run(host, UNTIL))]
    assert found == [("network_loss", "network_loss", "10.0.0.2:443")] * reported


def test_a_share_stays_one_when_a_client_waits_too() -> None:
    (found,) = latest(run(pooled(4, 40, waits_ms=np.where(BAD & (SECONDS > 33), 260, 6)), UNTIL))
    assert str(found["sentence"]).startswith("Up to 10 % of the TCP segments to 10.0.0.2:443 were lost"), found


def test_a_peer_elsewhere_that_falls_silent_has_lost_segments_to_it_only() -> None:
    host = Host()
    asked(host, SECONDS[(SECONDS < 36) | (SECONDS > 47)], 300, 6, segments=40)
    asked(host, SECONDS, 200, 5, to=peer("10.0.0.3", 443))
    sent_again(host, np.concatenate([np.repeat(SECONDS[BAD] - 0.5, 4), 36 + np.array([0.2, 0.6, 1.4, 3.0, 6.2])]))
    (found,) = latest(run(host, UNTIL))
    assert "of the TCP segments to 10.0.0.2:443 were lost" in str(found["sentence"])


def test_the_peers_own_retransmissions_are_its_loss() -> None:
    host = pooled(0, 10)
    served(host, SECONDS, FAR)
    host.made[-1].rows["segments"] = 30
    its = {"saddr": np.frombuffer(API[:16], "V16"), "sport": 443}
    sent_again(host, np.repeat(SECONDS[BAD] - 0.5, 4), FAR, to=peer("10.0.0.1", 41000), **its)
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "network_loss"
    assert "because 24 TCP segments between 10.0.0.2:443 and its clients had to be" in str(found["sentence"])


def test_the_share_of_retransmitted_segments_is_that_of_both_ends_and_in_the_sentence() -> None:
    """The round trips of one connection are long, since its segments were lost."""
    host = pooled(4, 20)
    served(host, SECONDS, FAR)
    asked(host, SECONDS[BAD], 210_000, 6, pid=APP_PID + 1)
    host.made[-2][1]["samples"], host.made[-3][1]["segments"] = 1, 12
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "network_loss"
    assert str(found["sentence"]).startswith("Up to 12.5 % of the TCP segments to 10.0.0.2:443 and from it were lost")


@pytest.mark.parametrize("late", [True, False])
def test_an_agent_that_got_no_cpu_time_knows_of_no_silence(late: bool) -> None:
    """Its sums of three seconds come at once."""
    host, there = Host(), (SECONDS < 30) | (SECONDS > 33)
    asked(host, SECONDS[there], 300, 6)
    asked(host, SECONDS[there | (not late)], 200, 5, to=peer("10.0.0.3", 443))
    sent_again(host, np.array([30.2, 30.6, 31.4]))
    assert [found["symptom"] for found in latest(run(host, UNTIL))] == [[], ["network_loss"]][not late]


@pytest.mark.parametrize("state", [b"fin_wait_1", b"last_ack"])
def test_who_was_left_is_not_waited_for(state: bytes) -> None:
    assert latest(run(cut(state), UNTIL)) == []


def test_a_lone_segment_is_none() -> None:
    host = Host()
    asked(host, SECONDS[np.abs(SECONDS - 30.9) > 0.1], 300, 6)
    sent_again(host, np.array([30.2]))
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize(
    ("tries", "reported"),
    [([30.5], 0), ([30.2, 30.6, 31.4, 33.0], 1), ([28.1, 29.6, 31.85, 32.4, 33.0], 0)],  # the last: no back-off
)
def test_who_only_sends_is_not_checked_each_second(tries: list[float], reported: int) -> None:
    """Its connection has samples for some seconds, and then for some none."""
    host = Host()
    asked(host, SECONDS[(SECONDS % 9 < 5) & ((SECONDS < 27) | (SECONDS > 36))], 300, 6)
    asked(host, SECONDS, 300, 6, peer("10.0.0.3", 443))
    sent_again(host, np.array(tries))
    assert len(latest(run(host, UNTIL))) == reported


@pytest.mark.parametrize("others", [(), (peer("10.0.0.3", 443),)])
def test_who_is_received_each_second_is_missed_at_once_whoever_else_is_silent(others: tuple[bytes, ...]) -> None:
    """The other one fell silent when it was not asked yet."""
    host = Host()
    asked(host, SECONDS[(SECONDS > 32) & (SECONDS < 50)], 300, 6)
    asked(host, SECONDS, 300, 6, peer("10.0.0.4", 443))
    sent_again(host, np.array([50.2]))
    for other in others:
        asked(host, SECONDS[SECONDS < 36], 300, 6, other)
        sent_again(host, np.array([36.2, 36.6, 37.4, 39, 42.2, 48.6]), to=other)
    watch = PeerWatch(CorrelatorConfig())
    for second in range(T0 // S, T0 // S + 51):
        rows: dict[str, list[np.ndarray]] = {}
        for table, part in host.made:
            rows.setdefault(table, []).append(part[part["t_ns"] // S == second])
        watch.series.begin(second)
        slots = watch.fill(
            second, OfSecond({table: compact(table, np.concatenate(parts)) for table, parts in rows.items()})
        )
    assert (NEAR, API) in [watch.names[slot] for slot in slots.tolist()]


def test_pairs_of_a_process_and_a_peer_without_room_are_counted() -> None:
    host, pids, t = Host(), np.arange(1, 1031), T0 + S // 2
    ends: dict[str, Any] = {"t_ns": t, "pid": pids, "proc_start_ns": START, "peer": np.frombuffer(API, "V18")}
    client = code("tcp_rtt", "role", "client")
    host.add("tcp_rtt", len(pids), **ends, role=client, netns=NEAR, samples=20, rtt_min_us=200)
    basis, kind = code("syscall_latency", "basis", "blocked"), code("syscall_latency", "kind", "waiting")
    host.add("syscall_latency", len(pids), **ends, basis=basis, kind=kind, max_ns=5 * MS)
    watch = PeerWatch(CorrelatorConfig())
    watch.step(T0 // S, OfSecond({table: compact(table, rows) for table, rows in host.made}))
    assert watch.dropped == 1030 - 1024


def jittery(doubled: int) -> Host:
    """Each packet takes another time; what was sent again meanwhile the peer had already, as it says (DSACK), or had
    not.
    """
    host, rng = Host(), np.random.default_rng(5)
    us = np.where(BAD, rng.uniform(250_000, 420_000, UNTIL), 300)
    asked(
        host,
        SECONDS,
        us,
        np.where(BAD, 460, 6),
        segments=40,
        again=np.where(BAD, 2, 0),
        doubled=np.where(BAD, doubled, 0),
    )
    sent_again(host, np.arange(30.2, 36, 0.5))
    return host


@pytest.mark.parametrize(("doubled", "cause"), [(0, "network_loss"), (2, "unknown")])
def test_losses_on_a_crowded_host_are_known_by_what_the_peer_did_not_have(doubled: int, cause: str) -> None:
    host, us = Host(), np.where(BAD & (doubled > 0), 30_000, 300)
    asked(host, SECONDS, us, np.where(BAD, 460, 6), segments=40, again=np.where(BAD, 3, 0), doubled=doubled * BAD)
    sent_again(host, np.arange(30.2, 36, 0.3))
    host.add(
        "syscall_latency",
        UNTIL,
        at=SECONDS,
        pid=55,
        comm=b"cc1",
        run_queue_ns=np.where(BAD, S, 10 * MS),
        count=1,
        basis="blocked",
        kind="slow",
    )
    assert [(found["symptom"], found["cause"]) for found in latest(run(host, UNTIL))] == [("network_loss", cause)]


def test_delays_that_vary_are_no_loss() -> None:
    (found,) = latest(run(jittery(2), UNTIL))
    assert (found["symptom"], found["cause"]) == ("network_rtt", "network_rtt")
    ruled_out = {entry["cause"]: entry["words"] for entry in found["ruled_out"]}  # type: ignore[attr-defined]
    assert "but the receiver already had most of them" in ruled_out["network_loss"]


def test_what_was_sent_again_for_nothing_is_no_loss_where_the_round_trips_are_well() -> None:
    host = Host()
    asked(
        host, SECONDS, 300, np.where(BAD, 260, 6), segments=40, again=np.where(BAD, 2, 0), doubled=np.where(BAD, 2, 0)
    )
    sent_again(host, np.arange(30.2, 36, 0.5))
    assert latest(run(host, UNTIL)) == []


def test_connects_that_rise_are_enough() -> None:
    host = Host()
    asked(host, SECONDS, np.where(BAD, 100_000, 300), np.where(BAD, 110, 6))  # a peer may hold its acknowledgements
    assert latest(run(host, UNTIL)) == []
    at = np.arange(0.25, UNTIL, 0.5)
    host.add(
        "tcp_connect",
        at=at,
        pid=APP_PID,
        netns=NEAR,
        peer=API,
        result="ok",
        duration_ns=np.where((at > 30) & (at < 36), 100 * MS, 300_000),
    )
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"]) == ("network_rtt", "network_rtt")


def test_without_its_rows_there_is_nothing() -> None:
    assert latest(run(lossy().without("tcp_retransmit"), UNTIL)) == []
    assert latest(run(lossy().without("syscall_latency"), UNTIL)) == []
    assert latest(run(slow().without("syscall_latency"), UNTIL)) == []


@pytest.mark.parametrize(("netns", "reported"), [(FAR, 1), (NEAR, 0)])
def test_no_link_is_between_processes_of_one_network_namespace(netns: int, reported: int) -> None:
    host = lossy()
    served(host, SECONDS, netns)
    assert len(latest(run(host, UNTIL))) == reported


def test_a_host_whose_processors_are_short_blames_no_network() -> None:
    host = slow()
    host.add(
        "syscall_latency",
        at=SECONDS,
        pid=5,
        basis="blocked",
        kind="slow",
        interval_ns=S,
        max_ns=0,
        run_queue_ns=np.where(BAD, 1500 * MS, 10 * MS),
    )
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["unknown"]


@pytest.mark.parametrize("seed", range(4))
def test_busy_hosts_of_varying_load_and_far_peers_are_not_reported(seed: int) -> None:
    """Ten minutes: a LAN peer that thinks for as long as it likes, a WAN peer that loses some segments, a mobile one
    whose RTT wanders.
    """
    rng = np.random.default_rng(seed)
    host = Host(seed)
    at = np.arange(0, 600) + 0.9
    load = np.repeat(rng.uniform(0.2, 5, 20), 30)
    asked(host, at, rng.normal(300, 30, 600) * (1 + load), rng.lognormal(np.log(20), 1.2, 600) * load, API)
    lost = rng.random(600) < 0.15
    wan = rng.normal(80_000, 8_000, 600)
    asked(host, at, wan, wan / 1e3 * 3 + np.where(lost, 280, 0), peer("93.1.2.3", 443))
    sent_again(host, at[lost] - 0.3)
    host.made[-1].rows["peer"] = np.frombuffer(peer("93.1.2.3", 443), "V18")
    mobile = 60_000 * np.exp(np.cumsum(rng.normal(0, 0.08, 600)).clip(-1.2, 1.2))
    asked(host, at, mobile, mobile / 1e3 * 1.5, peer("80.5.6.7", 8443))
    for pid in range(APP_PID + 10, APP_PID + 30):  # a pool of workers with a query of their own now and then
        asked(host, at, 300, rng.lognormal(np.log(20), 1.2, 600), peer("10.0.0.7", 5432), pid=pid)
    sent_again(host, at[rng.random(600) < 0.02] - 0.3, to=peer("10.0.0.7", 5432))
    assert latest(run(host, 600, every_ms=1000)) == []


def test_a_peer_that_is_asked_from_two_network_namespaces_has_each_ones_connects() -> None:
    """The connects of one of them took long; the other's did not."""
    host = Host()
    for netns in (NEAR, FAR):
        asked(host, SECONDS, 200, 1, netns=netns)
        at = np.arange(0, UNTIL, 0.25)
        host.add(
            "tcp_connect",
            at=at,
            pid=APP_PID,
            netns=netns,
            peer=API,
            result="ok",
            duration_ns=300_000 if netns == NEAR else 900_000,
        )
    watch = PeerWatch(CorrelatorConfig())
    rows = {b.table: [] for b in host.made}
    for table, part in host.made:
        rows[table].append(part[part["t_ns"] // S == T0 // S + 20])
    second = T0 // S + 20
    watch.series.begin(second)
    slots = watch.fill(
        second, OfSecond({table: compact(table, np.concatenate(parts)) for table, parts in rows.items()})
    )
    took = {
        watch.names[int(slot)][0]: us
        for slot, us in zip(slots, watch.series.last("connect_us", slots, second), strict=True)
    }
    assert took == {NEAR: 300.0, FAR: 900.0}


def device(host: Host, at: np.ndarray, queue: object, drops: object) -> None:
    host.add("socket_queue", at=at, kind="qdisc", device=b"eth0", queue=queue, drops=drops)


@pytest.mark.parametrize("dropping", [True, False])
def test_a_full_link_of_this_host_is_the_reason(dropping: bool) -> None:
    """With the process that has most to send."""
    host, at = Host(), SECONDS
    full = BAD
    asked(host, at, np.where(full, 260_000, 300), np.where(full, 300, 6))
    device(host, at, np.where(full, 480, 0), np.cumsum(np.where(full & dropping, 31, 0)))
    backup = {"pid": 999, "comm": b"backup", "peer": peer("10.0.0.9", 22), "send_q_bytes": 2_000_000}
    host.add("socket_queue", at=np.arange(30.5, 36), kind="connection", **backup)
    (one,) = latest(run(host, UNTIL))
    assert (one["cause"], one["culprit_pid"], one["culprit_object"]) == ("link_full", 999, "eth0")
    assert ("the link of eth0 on this host was full: 480 packets waited in its queue" in one["sentence"]) is True
    assert ("more were dropped" in one["sentence"]) is dropping
    assert "that of backup pid 999 to 10.0.0.9:22" in one["sentence"]


@pytest.mark.parametrize("before", [True, False])
def test_a_queue_that_is_always_long_or_short_for_once_is_not(before: bool) -> None:
    """fq holds packets of paced connections back."""
    host, at = Host(), SECONDS
    slow = BAD
    asked(host, at, np.where(slow, 260_000, 300), np.where(slow, 300, 6))
    device(host, at, np.where(slow & (at == 32) | before, 480, 0), 0)
    (one,) = latest(run(host, UNTIL))
    assert one["cause"] == "network_rtt"
