"""Limiters in Redis whose requests need more than one look: Envoy's counters, scripts of a library that decide nothing."""

from __future__ import annotations

import numpy as np

from agent.limiters.script_settings import parse
from agent.limiters.scripted import Limiters
from agent.probes.beside.redis_reader import RedisReader
from tests.unit.redis_pieces import Played, request
from tests.unit.test_redis_wire import results

_ENVOY = b"github.com/envoyproxy/ratelimit"


def _envoy(*asked: tuple[str, int, int], own: dict[str, object] | None = None) -> np.ndarray:
    """Rows of (key, count, end in s), each in a pipeline of its own."""
    played = Played()
    for key, count, end_s in asked:
        played.send(request("INCRBY", key, 1) + request("EXPIRE", key, end_s))
        played.send(b":%d\r\n:1\r\n" % count, reply=True)
    return played.rows(RedisReader(Limiters(parse(own or {}))))


def test_envoys_windows_are_its_units_whatever_it_adds_to_their_ends() -> None:
    """By default a counter lives up to 300 s longer than its window; a minute begins with a second, too."""
    rows = _envoy(
        ("edge_user_anna_1764000001", 1, 187),
        ("edge_user_anna_1764000060", 1, 299),
        ("edge_path_/x_1764000060", 1, 71),
        ("edge_path_/x_1764000060", 2, 340),
        ("edge_all_y_1763942400", 1, 86_400 + 11),
        ("edge_hour_z_1763996400", 1, 3_600),
    )
    assert (rows["window_ns"] // 10**9).tolist() == [1, 1, 60, 60, 86_400, 3_600]
    assert set(rows["library"].tolist()) == {_ENVOY} and results(rows) == ["?"] * 6
    assert len(set(rows["limiter_id"].tolist())) == 1 and rows["limiter_id"][0].endswith(b" edge_")
    assert len(set(rows["key"].tolist())) == 4  # one for each that is limited, in all of its windows


def test_a_limit_of_envoys_that_is_declared_goes_by_its_window() -> None:
    own = {"anna": {"command": "INCRBY", "key": "edge_user_", "allowed": "reply <= 2", "limit": 2}}
    rows = _envoy(*(("edge_user_anna_1764000001", n, 200 + n) for n in (1, 2, 3)), own=own)
    assert results(rows) == ["allowed", "allowed", "refused"] and rows["limit_per_s"].tolist() == [2, 2, 2]
