"""Python's libraries on a real Redis, beyond limits: each decision by the library's own answers."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
from throttled import Throttled, rate_limiter, store

from tests.kernel.test_redis_wire import _RESULTS, Rig, reported
from tests.servers.test_redis_streams import Redis


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Rig, int]]:
    server = Redis(tmp_path)
    one = Rig("on", {server.port})
    yield one, server.port
    one.close()
    server.end()


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaking_bucket", "gcra", "sliding_window"])
def test_throttled_py(watched: tuple[Rig, int], algorithm: str) -> None:
    rig, port = watched
    output: list[tuple[str, float]] = []

    def asks() -> None:
        limit = Throttled(
            using=algorithm,
            quota=rate_limiter.per_hour(5, burst=5),
            store=store.RedisStore(server=f"redis://127.0.0.1:{port}/0"),
        ).limit
        for _ in range(11):
            answer = limit("anna")
            output.append((("allowed", "refused")[answer.limited], answer.state.remaining))

    rows = rig.during(asks)
    assert [(_RESULTS[row["result"]], row["remaining"]) for row in rows] == output
    assert [result for result, _ in output] == ["allowed"] * 5 + ["refused"] * 6
    assert set(rows["library"].tolist()) == {b"throttled-py"}
    assert rows["limit_per_s"].tolist() == pytest.approx([5 / 3600] * 11)


def test_pyrate_limiter_in_redis(watched: tuple[Rig, int]) -> None:
    rig, port = watched
    log: collections.Counter[tuple[str, str]] = collections.Counter()

    def asks() -> None:
        limiter = Limiter(RedisBucket.init([Rate(5, Duration.HOUR)], redis.Redis(port=port), "bucket"))

        for _ in range(11):
            log[
                "pyrate_limiter.RedisBucket", "allowed" if limiter.try_acquire("anna", blocking=False) else "refused"
            ] += 1
        limiter.close()

    rows = rig.during(asks)
    assert reported(rows) == log and sorted(log.values()) == [5, 6]
    assert rows["limit_per_s"].tolist() == pytest.approx([5 / 3600] * 11)
