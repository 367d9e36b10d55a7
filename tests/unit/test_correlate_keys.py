"""One key of a limiter that is refused every time while others pass, and what only resembles it. The decisions are
those of limiters that are simulated: a fixed window, a log that counts refused requests, a penalty, a quota of a day.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.correlate.limiter_keys import KeyWatch
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import CorrelatorConfig
from agent.tables import TABLES
from tests.unit.correlate_scenarios import APP_PID, START, T0, Host, S, code, read, run

_KEYS, _UNTIL_S, _FROM_S = 10, 150, 40
_LIMIT, _WINDOW_S = 20, 5
#: (key, second) -> whether it passes; called for each request in the order of time.
Limiter = Callable[[str, float], bool]


def fixed_window(lost: str = "", blocked: dict[str, float] | None = None, window_s: float = _WINDOW_S) -> Limiter:
    """INCR, EXPIRE when the count is 1, and refuse above the limit. lost: whose EXPIRE is skipped from _FROM_S on."""
    counts: dict[str, tuple[float, int]] = {}

    def allowed(key: str, at: float) -> bool:
        begun, n = counts.get(key, (at, 0))
        if at >= begun + window_s and not (key == lost and begun >= _FROM_S):
            begun, n = at, 0
        counts[key] = begun, n + 1
        return n < _LIMIT and at < (blocked or {}).get(key, np.inf)

    return allowed


def log_of_all() -> Limiter:
    """ZADD, then ZCARD: it counts refused requests, too."""
    logs: dict[str, deque[float]] = defaultdict(deque)

    def allowed(key: str, at: float) -> bool:
        log = logs[key]
        log.append(at)
        while log[0] <= at - _WINDOW_S:
            log.popleft()
        return len(log) <= _LIMIT

    return allowed


def penalty(for_s: float) -> Limiter:
    """Whoever asks for too much is blocked for a time."""
    inner, until = fixed_window(), defaultdict[str, float](float)

    def allowed(key: str, at: float) -> bool:
        if at < until[key]:
            return False
        passes = inner(key, at)
        if not passes:
            until[key] = at + for_s
        return passes

    return allowed


def play(
    limiter: Limiter,
    rate: Callable[[str, float], float] = lambda key, at: 2.0,
    seed: int = 3,
    marked: Callable[[str, float], int] | None = None,
    beside: dict[str, Any] | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """rate: requests a second, by key and time. marked: ``unexpired_ns`` of a decision. beside: columns of decisions
    about the same limiter that come twice a second.
    """
    host = Host(seed)
    asked: list[tuple[float, str]] = []
    for key in [f"c{i}" for i in range(_KEYS)]:
        at = 0.0
        while at < _UNTIL_S:
            at += float(host.rng.exponential(1 / max(rate(key, at), 1e-9))) if rate(key, at) > 0 else 1.0
            asked += [(at, key)] * (rate(key, at) > 0)
    asked.sort()
    yes, no = (code("limiter_decision", "result", name) for name in ("allowed", "refused"))
    usual: dict[str, Any] = {
        "limit_per_s": _LIMIT / _WINDOW_S,
        "window_ns": _WINDOW_S * S,
        "result": [yes if limiter(key, at) else no for at, key in asked],
    }
    if marked is not None:
        usual["unexpired_ns"] = [marked(key, at) for at, key in asked]
    host.add(
        "limiter_decision",
        len(asked),
        **{
            "t_ns": T0 + (np.array([at for at, _ in asked]) * S).astype(np.int64),
            "pid": APP_PID,
            "tid": APP_PID,
            "proc_start_ns": START,
            "comm": b"gateway",
            "limiter_id": b"customers",
            "library": b"own",
            "cost": 1.0,
            "key": np.array([key.encode() for _, key in asked]),
            **usual,
            **columns,
        },
    )
    if beside is not None:
        n = 2 * _UNTIL_S
        rows = host.made[0].rows[:1].repeat(n)
        rows["t_ns"] = T0 + np.arange(n) * S // 2
        for name, value in beside.items():
            rows[name] = value
        host.made.append(Batch("limiter_decision", rows))
    found = [read(row) for batch in run(host, _UNTIL_S, tables=("finding",)) for row in batch.rows]
    return [row for row in found if row["symptom"] == "key_stuck"]


def test_a_counter_that_lost_its_expiry() -> None:
    def age_ns(key: str, at: float) -> int:  # as agent/redis_wire/counters.py
        return int((at - 40) * S) if key == "c7" and at > 72 else NULL_I64

    found = play(fixed_window("c7"), marked=age_ns)
    first, last = found[0], found[-1]
    assert (first["cause"], first["state"]) == ("expiry_lost", "open") and {row["finding_id"] for row in found} == {
        first["finding_id"]
    }
    assert "key c7 of limiter customers" in str(last["subject"]) and int(str(first["t_ns"])) < T0 + 80 * S
    assert " decisions) while other keys passed" in str(last["sentence"])
    assert "its limit is 20 in 5 s" in str(last["sentence"]) and "no EXPIRE was seen" in str(last["sentence"])


def test_without_the_wire_the_cause_is_unknown_and_load_is_ruled_out() -> None:
    found = play(fixed_window("c7"), rate=lambda key, at: 2.0 if key != "c7" else 1.5)
    assert found and {row["cause"] for row in found} == {"unknown"}
    assert "ruled out: load" in str(found[-1]["sentence"])
    assert found[0]["start_ns"] > T0 + 40 * S


def test_without_a_limit_what_is_usual_takes_its_place() -> None:
    assert play(fixed_window("c7"), limit_per_s=np.nan)


def test_a_limiter_without_known_results() -> None:
    def age_ns(key: str, at: float) -> int:
        return int((at - 40) * S) if key == "c7" and at > 72 else NULL_I64

    found = play(fixed_window("c7"), marked=age_ns, result=-1, limit_per_s=np.nan)
    assert {row["cause"] for row in found} == {"expiry_lost"}
    assert str(found[-1]["sentence"]).startswith("The counter of key c7 of limiter customers")


def test_it_ends_with_the_first_request_that_passes() -> None:
    stuck, other = fixed_window("c7"), fixed_window()
    found = play(lambda key, at: (stuck if at < 110 else other)(key, at))
    assert found[-1]["state"] == "closed" and int(str(found[-1]["end_ns"])) < T0 + 112 * S


OBSERVED = {"source": code("limiter_decision", "source", "redis")}


def reported(uid: int, result: object = "allowed", key: bytes = b"c7") -> dict[str, Any]:
    names = np.broadcast_to(np.array(result), 2 * _UNTIL_S)
    return {
        "source": code("limiter_decision", "source", "socket"),
        "reporter_uid": uid,
        "pid": 777,
        "key": key,
        "result": [code("limiter_decision", "result", str(name)) for name in names],
    }


@pytest.mark.parametrize("own", [OBSERVED, {"source": 1, "reporter_uid": 1000}], ids=["observed", "reported"])
def test_what_another_user_reports_hides_nothing(own: dict[str, Any]) -> None:
    assert play(fixed_window("c7"), beside=reported(1001), **own)
    assert not play(fixed_window("c7"), beside=reported(1000), source=1, reporter_uid=1000)


def test_what_a_user_reports_is_about_that_users_decisions() -> None:
    """While it lets no other key pass, its key is not stuck, whatever passes elsewhere."""
    forged = reported(1001, np.where(np.arange(2 * _UNTIL_S) < 80, "allowed", "refused"), b"c3")
    assert play(fixed_window(), beside=forged, **OBSERVED) == []


def hammered(key: str, at: float) -> float:
    return 40.0 if key == "c7" and at > _FROM_S else 2.0


def impatient(key: str, at: float) -> float:
    return 8.0 if key == "c7" and at > _FROM_S + 10 else 2.0


#: Seconds of bursts beyond the limit, then as before.
def once(key: str, at: float) -> float:
    return 20.0 if key == "c7" and _FROM_S < at < _FROM_S + 3 else 2.0


HEALTHY: dict[str, tuple[Callable[[], Limiter], dict[str, Any]]] = {
    "a client that hammers at a fixed window": (fixed_window, {"rate": hammered}),
    "at a log that counts refused requests": (log_of_all, {"rate": hammered}),
    "at a penalty that begins anew": (lambda: penalty(60), {"rate": hammered}),
    "a penalty after one burst": (lambda: penalty(100), {"rate": once}),
    "a blocked key": (lambda: fixed_window(blocked={"c7": 0}), {}),
    "a key that passed a few times": (lambda: fixed_window(blocked={"c7": 2}), {}),
    "a limit of nothing": (lambda: fixed_window(blocked={"c7": _FROM_S}), {"limit_per_s": 0.0}),
    "a key with few requests": (lambda: fixed_window("c7"), {"rate": lambda key, at: 0.05 if key == "c7" else 2.0}),
    "the quota of a day": (
        lambda: fixed_window(window_s=86_400),
        {"window_ns": 86_400 * S, "limit_per_s": 20 / 86_400, "rate": lambda key, at: 0.1 if key != "c7" else 2.0},
    ),
    "a quota without a known window": (
        lambda: fixed_window(window_s=86_400),
        {"window_ns": NULL_I64, "rate": lambda key, at: 0.1 if key != "c7" else 1.0},
    ),
    "all keys": (lambda: fixed_window(blocked={f"c{i}": _FROM_S for i in range(_KEYS)}), {}),
    "requests for more than the limit at once": (lambda: fixed_window(blocked={"c7": _FROM_S}), {"cost": 30.0}),
    "one that is blocked, and then hammers": (lambda: fixed_window(blocked={"c7": _FROM_S}), {"rate": impatient}),
    "a busy limiter": (fixed_window, {"rate": lambda key, at: 3.9}),
    "a busy log": (log_of_all, {"rate": lambda key, at: 4.4}),
}


@pytest.mark.parametrize("name", [*HEALTHY])
def test_what_only_resembles_it(name: str) -> None:
    limiter, more = HEALTHY[name]
    assert play(limiter(), **more) == []


def passing(keys: list[str], **columns: object) -> np.ndarray:
    rows = TABLES["limiter_decision"].empty(len(keys))
    rows["limiter_id"], rows["result"], rows["window_ns"] = b"x", code("limiter_decision", "result", "allowed"), 5 * S
    rows["key"] = keys
    for name, value in columns.items():
        rows[name] = value
    return rows


def kept(watch: KeyWatch) -> set[str]:
    return {of[1].decode() for of in watch._passing}


def test_a_users_keys_leave_room_for_those_of_others() -> None:
    watch, socket = KeyWatch(CorrelatorConfig(keys=64)), code("limiter_decision", "source", "socket")
    for second in range(10):
        flood = passing([f"a{second} {i}" for i in range(600)], source=socket, reporter_uid=1001, window_ns=10**15)
        watch.step(second, OfSecond({"limiter_decision": flood}))
    other = passing(["mine"], source=socket, reporter_uid=1002)
    watch.step(10, OfSecond({"limiter_decision": np.concatenate([other, passing(["seen"])])}))
    assert {"mine", "seen"} <= kept(watch) and len(watch._passing) == 64 // 2 // 4 + 2


def test_a_key_with_a_long_window_does_not_block_new_ones() -> None:
    watch = KeyWatch(CorrelatorConfig(keys=64))
    watch.step(0, OfSecond({"limiter_decision": passing(["day"], window_ns=86_400 * S)}))
    watch.step(1, OfSecond({"limiter_decision": passing([f"old {i}" for i in range(31)])}))
    for second in range(100, 104):
        watch.step(second, OfSecond({"limiter_decision": passing(["new", "newer"])}))
    assert {"day", "new", "newer"} <= kept(watch) and len(watch._passing) == 32


def test_very_many_keys_take_no_more_room() -> None:
    watch = KeyWatch(CorrelatorConfig(keys=64))
    rows = TABLES["limiter_decision"].empty(50)
    rows["limiter_id"], rows["result"], rows["window_ns"] = b"x", code("limiter_decision", "result", "allowed"), 5 * S
    for second in range(40):
        rows["t_ns"] = second * S
        rows["key"] = [f"{second} {i}".encode() for i in range(49)] + [b"mine"]
        rows["result"][-1] = code("limiter_decision", "result", "refused" if second > 3 else "allowed")
        watch.step(second, OfSecond({"limiter_decision": rows}))
    assert len(watch._passing) <= 32 and len(watch._refused) <= 32
    assert "mine" not in kept(watch)
