"""Whether a group keeps up, judged from samples alone: the rules as a table, and queues that are simulated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import isnan

import pytest

from agent.queues.status import STATUSES, Progress, QueueState, Sample, severity, slope

S = 1_000_000_000


def polled(lags: Iterable[int | None], each_s: float = 1.0, **columns: object) -> list[Sample]:
    """Samples with these lags. Other columns are the same for all, or a function of the number of the sample."""
    return [
        Sample(
            int(i * each_s * S),
            lag,
            **{name: value(i) if callable(value) else value for name, value in columns.items()},  # type: ignore[arg-type]
        )
        for i, lag in enumerate(lags)
    ]


def judged(samples: Iterable[Sample]) -> Iterator[QueueState]:
    progress = Progress()
    for sample in samples:
        progress.add(sample)
        yield progress.judge()


def reads(i: int) -> int:
    """The position of a group that reads."""
    return i


#: Samples, the status at the last one, and a part of its reason.
RULES: dict[str, tuple[list[Sample], str, str]] = {
    "nothing waits": (polled([0] * 30, position=7, consumers=1), "ok", ""),
    "nothing waits and nobody is there": (polled([0] * 30, position=7, consumers=0), "ok", ""),
    "an idle producer is no lag": (polled([9, 4, 0, *[0] * 60], position=lambda i: min(i, 2), consumers=1), "ok", ""),
    "a message that has just come": (polled([*[0] * 30, 5], position=7, consumers=1), "ok", ""),
    "too short to tell": (polled([5] * 6, position=7, consumers=1), "ok", ""),
    "a steady backlog": (polled([500, 503, 498, 501, 499, 502] * 5, position=reads), "ok", ""),
    "as much comes as is read": (polled([500] * 30, position=reads), "ok", ""),
    "nothing is read": (polled([5] * 11, position=7, consumers=2), "stalled", "nothing read for 10 s, 5 undelivered"),
    "a poll that knows nothing is no reading": (
        polled([5 if i % 9 else None for i in range(30)], position=lambda i: 7 if i % 9 else None, consumers=2),
        "stalled",
        "nothing read for 28 s, 5 undelivered",
    ),
    "nothing is read of what grows": (
        polled(range(5, 30), position=7, consumers=2),
        "stalled",
        "nothing read for 24 s",
    ),
    "the consumers hold as much as they may": (
        polled(range(5, 20), position=7, consumers=2, pending=4, acked=1, prefetch=4),
        "stalled",
        "19 undelivered; prefetch exhausted: 4 of 4",
    ),
    "the consumers hold as much as they may of other queues": (
        polled(range(5, 20), position=7, consumers=2, acked=1, prefetch=4, beside=4),
        "stalled",
        "19 undelivered; prefetch exhausted: 4 of 4",
    ),
    "no consumer": (polled([5] * 11, position=7, consumers=0), "stopped", "no consumer for 10 s, 5 undelivered"),
    "a position that is unknown now and then": (
        polled([5] * 12, position=lambda i: 7 if i % 4 else None, consumers=0),
        "stopped",
        "no consumer for 11 s",
    ),
    "no consumer, and no mark of progress": (polled([5] * 11, consumers=0), "stopped", "no consumer for 10 s"),
    "no consumer, and the last ones took all": (
        polled([0] * 11, pending=4, position=7, consumers=0, held=True),
        "stopped",
        "no consumer for 10 s, 0 undelivered, 4 pending",
    ),
    "no consumer, and messages are taken one by one": (polled([0] * 11, pending=1, position=7, consumers=0), "ok", ""),
    "consumers are registered, none asks": (
        polled([5] * 15, position=7, consumers=3, asked_s=lambda i: i + 1.0),
        "stopped",
        "no consumer requested messages for 14 s",
    ),
    "one zero does not hide a stop": (
        polled([5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7], position=7, consumers=1),
        "stalled",
        "nothing read for 11 s",
    ),
    "a lag of one is enough": (polled([1] * 12, position=7, consumers=1), "stalled", "1 undelivered"),
    "slow polls": (polled([5, 5], each_s=60, position=7, consumers=1), "stalled", "nothing read for 60 s"),
    "it reads every 30 s": (polled([i % 30 for i in range(175)], position=lambda i: i // 30), "ok", ""),
    "it has read every 30 s and no longer does": (
        polled([i % 30 if i < 90 else i - 90 for i in range(152)], position=lambda i: min(i, 90) // 30),
        "stalled",
        "nothing read for 60 s",
    ),
    "delivered, never acknowledged": (
        polled([0] * 11, position=reads, acked=3, pending=lambda i: i + 3),
        "stalled",
        "none acknowledged for 10 s, 13 pending, grew by 10",
    ),
    "it acknowledges now and then, and its position is not known": (
        polled([i % 30 for i in range(175)], acked=lambda i: i // 30, consumers=1),
        "ok",
        "",
    ),
    "it commits again after a pause, and its position is not known": (
        polled(
            [5] * 40, position=lambda i: 7 if i < 12 else None, acked=lambda i: 7 + max(0, i - 11) // 5, consumers=1
        ),
        "ok",
        "",
    ),
    "long tasks": (polled([0] * 30, position=7, acked=3, pending=4), "ok", ""),
    "it grows": (polled(range(10, 32), position=reads), "lagging", "lag grew from 21 to 31 in 10 s"),
    "it grows with dips": (polled([10 + 3 * i - 4 * (i % 3) for i in range(24)], position=reads), "lagging", "grew"),
    "it grows slowly": (polled([500 + i // 5 for i in range(90)], position=reads), "lagging", "lag grew from"),
    "it falls": (polled(range(90, 60, -1), position=reads), "draining", "lag fell from 71 to 61 in 10 s"),
    "many come at once, and are read": (
        polled([*[0] * 10, *range(200, 140, -4)], position=reads, consumers=1),
        "draining",
        "fell",
    ),
    "it has caught up": (polled([*range(60, 0, -2), 0], position=reads), "ok", ""),
    "set back": (
        polled(
            [*[3] * 12, *[300] * 3],
            position=lambda i: i if i < 12 else i - 50,
            added=1000,
            acked=lambda i: 990 if i < 12 else 690,
        ),
        "rewound",
        "went back by 300 messages",
    ),
    "counted late once": (
        polled([3] * 15, position=reads, added=lambda i: 10 * i, acked=lambda i: 10 * i - (15 if i == 13 else 3)),
        "ok",
        "",
    ),
    "an estimate that falls": (
        polled([3] * 15, position=reads, added=1000, acked=lambda i: 900 - i // 8, exact=False),
        "ok",
        "",
    ),
    "made anew": (
        polled([5] * 15, position=7, consumers=1, added=lambda i: 900 if i < 10 else 5, acked=lambda i: 0),
        "ok",
        "",
    ),
    "lag unknown": (polled([None] * 15), "unknown", "the lag is not known"),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rules(name: str) -> None:
    samples, status, reason = RULES[name]
    last = list(judged(samples))[-1]
    assert last.status == status
    assert reason in last.reason and bool(reason) == bool(last.reason)


def test_each_status_but_down_has_a_rule() -> None:
    assert {status for _, status, _ in RULES.values()} == set(STATUSES) - {"down"}
    assert [severity(status) for status in STATUSES] == list(range(len(STATUSES)))
    assert severity("other") == severity("unknown")
    assert severity(None) == severity("") == 0


#: Memory or retention that is reached, the seconds until then, and in words.
LIMITS: dict[str, tuple[list[Sample], float, str]] = {
    "memory": (
        polled(range(10, 70), position=reads, memory_bytes=lambda i: 1000 + 10 * i, memory_limit_bytes=3590),
        200.0,
        "memory full in 200 s",
    ),
    "retention, stalled": (
        polled([5] * 20, position=7, consumers=1, age_s=lambda i: 100.0 + i, kept_s=600.0),
        481.0,
        "deleted in 481 s",
    ),
    "retention, stalled at something else": (
        polled([5] * 20, position=7, consumers=1, age_s=lambda i: 100.0 + i, kept_s=600.0, waits_for="it waits"),
        481.0,
        "undelivered; it waits; deleted in 481 s",
    ),
    "retention, lagging": (
        polled(range(10, 70), position=reads, age_s=lambda i: 100 + i / 2, kept_s=600.0),
        941.0,
        "deleted in 941 s",
    ),
    "memory that does not grow": (
        polled(range(10, 70), position=reads, memory_bytes=1000, memory_limit_bytes=3590),
        float("nan"),
        "",
    ),
    "no limit": (polled(range(10, 70), position=reads, memory_bytes=lambda i: i), float("nan"), ""),
    "it keeps up": (
        polled([5] * 60, position=reads, memory_bytes=lambda i: 1000 + 10 * i, memory_limit_bytes=3590),
        float("nan"),
        "",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_until_a_limit_is_reached(name: str) -> None:
    samples, limit_in_s, words = LIMITS[name]
    last = list(judged(samples))[-1]
    assert words in last.reason
    if isnan(limit_in_s):
        assert isnan(last.limit_in_s) and isnan(last.error_s)
    else:
        assert abs(last.limit_in_s - limit_in_s) <= max(last.error_s, 0.01)
        assert last.error_s < 0.05 * limit_in_s


def simulated(rng: random.Random, seconds: int, arrivals: Callable[[int], float], reads_per_s: float) -> list[Sample]:
    """A queue polled once a second: random arrivals, and a consumer that reads at most so many, randomly too."""
    lag, added, acked, out = 0, 0, 0, []
    for i in range(seconds):
        out.append(Sample(i * S, lag, 0, 1, acked, acked, added))
        for _ in range(20):
            new = sum(rng.random() < arrivals(i) / 200 for _ in range(10))
            read = min(lag + new, sum(rng.random() < reads_per_s / 200 for _ in range(10)))
            lag, added, acked = lag + new - read, added + new, acked + read
    return out


def changes(judgements: Iterable[QueueState]) -> int:
    return sum(a.status != b.status for a, b in pairwise(judgements))


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_that_keeps_up_is_ok_nearly_always(seed: int) -> None:
    found = list(judged(simulated(random.Random(seed), 600, lambda _: 50.0, 80.0)))
    well = [one.status for one in found].count("ok")
    assert well > 0.97 * len(found)
    assert changes(found) <= 12
    assert not {"stalled", "stopped", "rewound", "unknown"} & {one.status for one in found}


@pytest.mark.parametrize("seed", range(5))
def test_a_rush_is_lagging_then_draining_then_ok_and_the_forecast_holds(seed: int) -> None:
    samples = simulated(random.Random(seed), 400, lambda i: 120.0 if 100 <= i < 160 else 20.0, 80.0)
    found = list(judged(samples))
    empty = next(i for i in range(170, 400) if samples[i].lag == 0)
    assert [one.status for one in found[125:160]].count("lagging") > 30
    assert [one.status for one in found[180 : empty - 3]].count("draining") > 0.9 * (empty - 3 - 180)
    assert {one.status for one in found[empty + 10 :]} == {"ok"}
    assert changes(found) <= 8
    draining = [i for i in range(180, empty - 3) if not isnan(found[i].drains_in_s)]
    held = [abs(found[i].drains_in_s - (empty - i)) <= 2 * found[i].error_s + 1 for i in draining]
    assert sum(held) > 0.85 * len(held)


def test_a_slope_has_an_error() -> None:
    assert slope([(0, 1), (S, 2), (2 * S, 3)]) is None
    assert slope([(S, 1)] * 9) is None
    found = slope([(i * S, 7 * i + (1 if i % 2 else -1)) for i in range(20)])
    assert found is not None
    assert abs(found.per_s - 7) < found.error < 1
    assert found.significant(3)
