"""A program of a real Redis that loses the expiry of one customer's counter: from the wire to the finding."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
import redis

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.correlate import limiter_keys
from agent.correlate.correlator import Correlator
from agent.limiters.decision import hashed
from agent.redis_wire import counters
from agent.tables import TABLES
from tests.kernel.test_redis_wire import Rig
from tests.servers.test_redis_streams import Redis
from tests.unit.correlate_scenarios import latest

_WINDOW_S, _LIMIT, _KEYS, _LOSES, _LOST_S, _UNTIL_S = 1, 20, ("anna", "bert", "cleo"), "cleo", 5.0, 16.0
DECLARED: dict[str, object] = {"customers": {"command": "INCR", "key": "rl:", "limit": _LIMIT, "window_s": _WINDOW_S}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    one = Redis(tmp_path_factory.mktemp("redis"))
    yield one
    one.end()


def work(port: int) -> None:
    """INCR, EXPIRE at the first count; from _LOST_S on, without EXPIRE for one key of three."""
    with redis.Redis(port=port) as client:
        client.flushall()
        begun = time.monotonic()
        while (at := time.monotonic() - begun) < _UNTIL_S:
            for key in _KEYS:
                if client.incr(f"rl:{key}") == 1 and not (key == _LOSES and at > _LOST_S):
                    client.expire(f"rl:{key}", _WINDOW_S)
            time.sleep(0.08)


@pytest.mark.parametrize("own", [{}, DECLARED], ids=["undeclared", "declared"])
def test_a_lost_expiry_is_found_and_healthy_keys_are_not(
    own: dict[str, object], server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_LEAST_NS", 3_000_000_000)
    monkeypatch.setattr(limiter_keys, "_LEAST_S", 3)
    rig = Rig("on", {server.port}, own=own)
    try:
        rows = rig.during(lambda: work(server.port))
    finally:
        rig.close()
    correlator = Correlator()
    correlator.feed(Batch("limiter_decision", rows))
    made = [
        batch
        for second in range(int(rows["t_ns"].min()) // 10**9, int(rows["t_ns"].max()) // 10**9 + 1)
        for batch in correlator.advance(second * 10**9)
    ]
    found = [one for one in latest(made) if one["symptom"] == "key_stuck"]
    aged = rows[rows["unexpired_ns"] > NULL_I64]
    assert [(one["cause"], one["state"]) for one in found] == [("expiry_lost", "open")]
    (key,) = {one.decode() for one in aged["key"]}
    assert key == hashed(f"rl:{_LOSES}".encode()).decode()
    assert len(set(rows["key"])) == len(_KEYS)
    assert f"key {key} of limiter" in str(found[0]["subject"]) and aged["unexpired_ns"].max() > 5 * _WINDOW_S * 10**9
    refused = TABLES["limiter_decision"].code("result", "refused")
    of_key = rows[rows["key"] == key.encode()]
    assert (np.count_nonzero(of_key["result"] == refused) > 20) == bool(own)
    assert ("was refused every time" in str(found[0]["sentence"])) == bool(own)
