"""How each symptom is reported: the impact, what is usual, and when. Elsewhere tests go by facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.common.sentence import plain
from agent.correlate.catalogue import symptom_of, symptoms
from agent.correlate.episode import Episode, Verdict
from agent.correlate.finding import Finding
from agent.correlate.words import pieces
from tests.unit.correlate_scenarios import S, peer

RAW = peer("10.0.0.2", 443)
WHEN = " from boot+5.000 to boot+6.000"


def episode(
    symptom: str,
    subject: str,
    metric: str = "",
    unit: str = "",
    value: float = 0.0,
    base: float = 0.0,
    key: tuple[object, ...] = (),
    count: int = 1,
    comm: str = "",
    words: str = "",
    **facts: float,
) -> Episode:
    """From 5 s to 6 s after boot."""
    made = Episode(symptom, key, 0, subject, "", 5 * S, 6 * S, metric, unit, base, value, 0.0, 6)
    made.count, made.comm, made.words, made.facts = count, comm, words, facts
    return made


SENTENCES = [
    (
        episode(
            "accept_overflow", "accept queue of 0.0.0.0:80 (nginx pid 7)", "queue", "connections", 129, limit=128.0
        ),
        "The accept queue of 0.0.0.0:80 (nginx pid 7) had 129 connections waiting (limit: 128) WHEN",
    ),
    (
        episode("blocked_time", "archiver pid 8", "blocked_ns", "ns", 9e8, 1e6),
        "archiver pid 8 was blocked in system calls for up to 900 ms (usually 1 ms) WHEN",
    ),
    (
        episode("blocked_time", "archiver pid 8", "blocked_ns", "ns", 9e9),
        "archiver pid 8 was blocked in system calls for 9 s, all threads together (usually hardly ever) WHEN",
    ),
    (episode("broker_down", "the redis server at 10.0.0.2:6379"), "The redis server at 10.0.0.2:6379 was down WHEN"),
    (
        episode("broker_stall", "the redis server at 10.0.0.2:6379", "poll_ns", "ns", 1.5e9, 1e6),
        "The redis server at 10.0.0.2:6379 did not answer for 1.5 s (usually 1 ms) WHEN",
    ),
    (
        episode("clock_disagreement", "chronyd's time against MONOTONIC_RAW", "apart", "ns", 2e9, bound_ns=1e6),
        "chronyd's time against MONOTONIC_RAW was off by 2 s, more than both error bounds together (1 ms), WHEN",
    ),
    (episode("clock_jump", "wall clock", "", "ns", 2e9), "The wall clock was moved by 2 s WHEN"),
    (
        episode("connect_failures", "10.0.0.2:443", "failed", "", 0.5, failed=2.0),
        "Up to 50 % of the connections to 10.0.0.2:443 failed WHEN",
    ),
    (
        episode("connect_latency", "10.0.0.2:443", "longest_ns", "ns", 1.1e9, 3e5, slow=3.0),
        "3 connects to 10.0.0.2:443 took up to 1.1 s (usually 300 us) WHEN",
    ),
    (
        episode("deadline_exceeded", "requests of front pid 9 to 10.0.0.2:443", "age_ns", "ns", 1e9, n=3.0),
        "Requests of front pid 9 to 10.0.0.2:443 got no answer and were given up 3 times, each after 1 s, WHEN",
    ),
    (
        episode("decision_latency", "limiter api (python3 pid 9)", "max_ns", "ns", 1.4e9, 8e5),
        "Decisions of limiter api (python3 pid 9) took 1.4 s (usually 800 us) WHEN",
    ),
    (
        episode("decision_latency", "limiter api (python3 pid 9)", "max_ns", "ns", 1.4e9, 8e5, count=2),
        "Decisions of limiter api (python3 pid 9) took up to 1.4 s (usually 800 us) WHEN",
    ),
    (
        episode("decision_latency", "limiter api (python3 pid 9)", "high_ns", "ns", 1.4e9, 8e5),
        "One in ten decisions of limiter api (python3 pid 9) took 1.4 s or more (usually 800 us) WHEN",
    ),
    (
        episode("handshake_failures", "10.0.0.2:443", "failed", "", 1.0),
        "Up to 100 % of the TLS handshakes with 10.0.0.2:443 failed WHEN",
    ),
    (
        episode("handshake_latency", "10.0.0.2:443", "med_ns", "ns", 5e8, 3e6, slow=4.0),
        "4 TLS handshakes with 10.0.0.2:443 took up to 500 ms (usually 3 ms) WHEN",
    ),
    (
        episode("lookup_failures", "shop pid 9", "lost", "", 0.5),
        "Up to 50 % of the lookups of shop pid 9 for names that it had resolved before failed WHEN",
    ),
    (
        episode("lookup_latency", "shop pid 9", "longest_ns", "ns", 1.3e9, 2e6),
        "Lookups of shop pid 9 took up to 1.3 s (usually 2 ms) WHEN",
    ),
    (
        episode("network_loss", "10.0.0.2:443", "wait_ns", "ns", 3e9, 1e6),
        "Clients of 10.0.0.2:443 waited up to 3 s (usually 1 ms) for retransmitted segments WHEN",
    ),
    (
        episode("network_rtt", "10.0.0.2:443", "rtt", "ns", 2e8, 1e6),
        "Round trips to 10.0.0.2:443 took 200 ms (usually 1 ms) WHEN",
    ),
    (episode("process_gone", "worker pid 12", "happens", "", 1.0), "worker pid 12 ended at boot+5.000"),
    (
        episode("process_gone", "worker pid 12", "happens", "", 3.0, comm="worker"),
        "worker ended 3 times, a new process each time, the last one worker pid 12, at boot+5.000",
    ),
    (
        episode("process_stopped", "redis-server pid 31888", "happens", "ns", 1.5e9),
        "redis-server pid 31888 was stopped for 1.5 s WHEN",
    ),
    (
        episode("queue_lag", "redis queue jobs group workers", "stuck", "", 1.0),
        "redis queue jobs group workers made no progress while messages arrived WHEN",
    ),
    (
        episode("queue_lag", "redis queue jobs group workers", "lag", "", 4000.0, 20.0),
        "redis queue jobs group workers fell behind: its lag was 4000 messages (usually 20) WHEN",
    ),
    (
        episode("queue_lag", "redis queue jobs group workers", "age_s", "s", 9.0),
        (
            "redis queue jobs group workers fell behind: its oldest undelivered message was 9 s old (usually none"
            " waits) WHEN"
        ),
    ),
    (
        episode("queue_lag", "redis queue jobs group workers", "idle_s", "s", 90.0, 2.0),
        "One consumer of redis queue jobs group workers was idle for 90 s (usually 2 s) WHEN",
    ),
    (
        episode("quiet_hour", "limiter api (shop pid 9)", "silent", "ns", 600e9, 20e9, n_base=900.0),
        (
            "Limiter api (shop pid 9) made no decision for 10 min (usually 900 decisions in this hour of the day, with"
            " pauses of at most 20 s) WHEN"
        ),
    ),
    (
        episode("quiet_hour", "shop pid 9 on port 80", "unasked", "ns", 600e9, 20e9, n_base=900.0),
        (
            "shop pid 9 on port 80 got no request for 10 min (usually 900 requests in this hour of the day, with pauses"
            " of at most 20 s) WHEN"
        ),
    ),
    (
        episode("receiver_stalled", "connection of writer pid 9 to 10.0.0.2:443", "stalled_ns", "ns", 3e9),
        "The reader of the connection of writer pid 9 to 10.0.0.2:443 read nothing for 3 s WHEN",
    ),
    (
        episode("refusals", "limiter api (shop pid 9)", "share", "", 0.6, 0.1, refused=9.0),
        "Limiter api (shop pid 9) refused up to 60 % of decisions (usually 10 %) WHEN",
    ),
    (
        episode("refusals", "limiter api (shop pid 9)", "share", "", 0.6, 0.0, errors=9.0),
        "Limiter api (shop pid 9) failed in up to 60 % of decisions (usually none) WHEN",
    ),
    (
        episode("resource_low", "shop pid 9", "cpu", "ns", 4e8),
        "shop pid 9 waited for a CPU for up to 400 ms per second, all threads together, WHEN",
    ),
    (episode("resource_low", "shop pid 9", "oom", "", 1.0), "shop pid 9 was killed at boot+5.000"),
    (
        episode("resource_low", "shop pid 9", "pids", "", 3.0),
        "The cgroup of shop pid 9 could not start 3 processes or threads in a second WHEN",
    ),
    (
        episode("resource_low", "shop pid 9", "fd", "", 1000.0, limit=1024.0),
        "shop pid 9 had 1000 of 1024 open files in use WHEN",
    ),
    (
        episode(
            "retry_storm",
            "eager pid 9, which connects to 10.0.0.2:443",
            "n",
            "",
            304.0,
            4.0,
            (1, RAW, "eager"),
            failed=900.0,
            n=1000.0,
        ),
        "eager pid 9 connected to 10.0.0.2:443 up to 304 per second (usually 4), and 900 of 1000 attempts failed, WHEN",
    ),
    (
        episode("sender_stalled", "connection of writer pid 9 to 10.0.0.2:443", "stalled_ns", "ns", 3e9, 1e8),
        (
            "The writer of the connection of writer pid 9 to 10.0.0.2:443 wrote nothing for 3 s (usually at most 100"
            " ms) WHEN"
        ),
    ),
    (
        episode("service_errors", "the rabbitmq server at 10.0.0.2:5672", "alarms", "", 1.0),
        "The rabbitmq server at 10.0.0.2:5672 blocked its publishers WHEN",
    ),
    (
        replace(
            episode("entries_lost", "the redis server at 10.0.0.2:6379", "lost", "", 1.0),
            words="orders: fail-over: at least 23 entries are gone",
        ),
        "The redis server at 10.0.0.2:6379 lost data WHEN: orders: fail-over: at least 23 entries are gone",
    ),
    (
        replace(
            episode("entries_lost", "redis queue orders group bill", "removed", "", 12.0), keys={"system": "redis"}
        ),
        (
            "12 messages of redis queue orders group bill were removed by the stream's limit, XTRIM or XDEL before"
            " they were read WHEN"
        ),
    ),
    (
        episode("redelivery", "celery queue mail", "redelivered", "", 5.0),
        "Messages of celery queue mail were redelivered repeatedly (in 5 polls) WHEN",
    ),
    (
        episode("rebalancing", "kafka queue orders group g", "rebalances", "", 4.0, unstable_s=2.5),
        (
            "The partitions of kafka queue orders group g were reassigned 4 times WHEN, 2.5 s of it without an"
            " assignment"
        ),
    ),
    (
        episode("retention_near", "kafka queue orders group g", "age_s", "s", 540.0, left_s=60.0),
        "kafka queue orders group g has unread messages that may be deleted in 60 s: the first was 9 min old WHEN",
    ),
    (
        episode(
            *("duplicates", "celery queue mails", "duplicates", "", 3.0, 0.0, (), 1, "", "mail-1"),
            duplicates=5.0,
            messages=40.0,
            repeated_s=6.0,
        ),
        "5 of 40 messages of celery queue mails were consumed again WHEN (mail-1 after 6 s)",
    ),
    (
        episode(
            *("out_of_order", "redis queue mails", "out_of_order", "", 1.0, 0.0, (), 1, "", "mail-1"),
            out_of_order=1.0,
            messages=1.0,
            behind=3.0,
            produced=1.0,
        ),
        "1 of 1 message of redis queue mails was produced out of order WHEN (mail-1 was 3 behind)",
    ),
    (
        episode(
            "key_stuck", "key ab of limiter api (shop pid 9)", "refused", "", 46.0, window_s=5.0, limit=20.0, asked=1.5
        ),
        (
            "Key ab of limiter api (shop pid 9) was refused every time (46 decisions) while other keys passed"
            " (requested: 1.5 per second; its limit is 20 in 5 s) WHEN"
        ),
    ),
    (
        episode("key_stuck", "key ab of limiter api (shop pid 9)", "unexpired", "ns", 62e9, 5e9, window_s=5.0),
        ("The counter of key ab of limiter api (shop pid 9) did not expire for 62 s, although its window is 5 s, WHEN"),
    ),
    (
        episode("queue_lag", "redis queue jobs group g", "gone", "", 1.0),
        "redis queue jobs group g was deleted while clients used it WHEN",
    ),
    (
        episode("service_errors", "the redis server at 10.0.0.2:6379", "replies", "", 3.0, replies=3.0),
        "The redis server at 10.0.0.2:6379 refused 3 commands within a second WHEN",
    ),
    (
        episode("service_errors", "limiter api (shop pid 9)", "share", "", 0.6, 0.0),
        "Limiter api (shop pid 9) failed in up to 60 % of decisions (usually none) WHEN",
    ),
    (
        episode("service_latency", "shop pid 9 on port 80", "max_ns", "ns", 1.4e9, 1e6),
        "shop pid 9 on port 80 took up to 1.4 s to answer (usually 1 ms) WHEN",
    ),
    (
        episode("silence", "limiter api (shop pid 9)", "silent", "ns", 3.3e9, 1e8),
        "Limiter api (shop pid 9) made no decision for 3.3 s (usually pauses of at most 100 ms) WHEN",
    ),
    (
        episode("window_shut", "connection of writer pid 9 to 10.0.0.2:443", "", "ns", 3e9, unsent=3e5),
        (
            "The other end of the connection of writer pid 9 to 10.0.0.2:443 did not read for 3 s, with 300000 bytes"
            " unsent, WHEN"
        ),
    ),
]


@pytest.mark.parametrize(("made", "reported"), SENTENCES, ids=[made.symptom for made, _ in SENTENCES])
def test_a_symptom_is_reported_by_its_impact(made: Episode, reported: str) -> None:
    assert plain(pieces(symptom_of(made).clause(made))) == reported.replace(" WHEN", WHEN)


def test_each_symptom_is_in_the_table() -> None:
    assert {made.symptom for made, _ in SENTENCES} == {*symptoms()}
    assert not [sentence for _, sentence in SENTENCES if sentence.startswith(("Who ", "What "))]


@pytest.mark.parametrize(
    ("verdicts", "reported"),
    [
        ([("peer_stopped", 0.9, "it did not read", "")], "{what} because it did not read."),
        ([("peer_stopped", 0.5, "it did not read", "")], "{what}, probably because it did not read."),
        (
            [("process_stopped", 0.9, "it was stopped", "SIGSTOP from bash, pid 3")],
            "{what} (SIGSTOP from bash, pid 3).",
        ),
        ([("cpu", 0, "", ""), ("clock_step", 0, "", "")], "{what}; cause unknown; ruled out: clock step, cpu."),
        ([], "{what}; cause unknown."),
    ],
)
def test_the_cause_comes_after_the_impact(verdicts: list[tuple[str, float, str, str]], reported: str) -> None:
    made = episode("process_stopped", "redis-server pid 31888", "happens", "ns", 1.5e9, key=(31888, 1, 1))
    found = Finding(5 * S, 6 * S, 6)
    found.add_verdicts(made, [Verdict(cause, score, "", words, short=short) for cause, score, words, short in verdicts])
    assert plain(pieces(found.sentence())) == reported.format(
        what="redis-server pid 31888 was stopped for 1.5 s" + WHEN
    )
