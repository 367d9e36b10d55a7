"""The models of limiters against the real ones: the same times give the same decisions, 10,000 at a time, over steps of
the clock.

Go's libraries by a program that gives them the time (models/main.go), Python's limits with a clock of ours, Redis
scripts with the time as an argument. nginx's limit_req reads a clock of its own that nobody can set: its model is only
as good as the reading of its source.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.resp import RedisUrl, RespClient
from agent.demo.limiter_part import SCRIPT
from agent.limiters.models.catalogue import MODELS
from agent.limiters.models.model import SECOND, Arrivals, Limit
from tests.servers.test_redis_streams import Redis

PROGRAM = Path(__file__).parent / "models"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "/var/tmp")) / "tickscope-go-tests"
N = 10_000
EPOCH_NS = 1_790_000_000 * SECOND
STEPS_S = (-0.5, 2.0, -2.0, 3600.0, -11.0, 0.063, -3600.0, -0.1, 0.9)
#: All but nginx's.
SERVED = {
    "token bucket",
    "token bucket, first generation",
    "GCRA",
    "leaky bucket, waits",
    "sliding window of slots",
    "leap array",
    "fixed window, from its first request",
    "sliding log, in order",
    "sliding window of two counters",
    "GCRA, redis_rate",
    "sliding log",
    "fixed window",
}


def times(seed: int, per_s: float) -> np.ndarray:
    """A clock that is stepped nine times, read at random, in whole microseconds."""
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.exponential(SECOND / per_s, N)).astype(np.int64)
    for at, step in zip(np.sort(rng.integers(N // 20, N, len(STEPS_S))), rng.permutation(STEPS_S), strict=True):
        t[at:] += int(step * SECOND)
    return (EPOCH_NS + t) // 1000 * 1000


def costs(seed: int, most: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).integers(1, most + 1, N).astype(np.float64)


#: limit, arrivals a second, the largest cost; buckets of one and of many, windows that are spent and ones that hardly
#: are.
TRIALS = (
    (Limit(per_s=100, burst=7, count=40, window_ns=SECOND), 150.0, 1),
    (Limit(per_s=30, burst=20, count=90, window_ns=SECOND), 60.0, 3),
    (Limit(per_s=7, burst=1, count=5, window_ns=SECOND), 20.0, 1),
)


def decided(name: str, limit: Limit, t: np.ndarray, cost: np.ndarray) -> list[bool]:
    return [bool(one) for one in MODELS[name].decide(Arrivals.of(t, cost), limit)]


def same(name: str, limit: Limit, t: np.ndarray, cost: np.ndarray, real: Sequence[bool]) -> None:
    model = decided(name, limit, t, cost)
    unlike = [i for i, (mine, its) in enumerate(zip(model, real, strict=True)) if mine != its]
    assert not unlike, f"{name}: {len(unlike)} of {N} differ, the first at {unlike[0]}"
    assert 0.01 < np.mean(real) < 0.99, f"{name} decides nothing here"


def go_program(modfile: str) -> Path:
    """Built once into a cache. Skips where there is no Go."""
    if not shutil.which("go"):
        pytest.skip("needs Go: apt install golang")
    sources = b"".join((PROGRAM / name).read_bytes() for name in ("main.go", "live.go", modfile))
    version = subprocess.run(["go", "version"], check=True, capture_output=True).stdout
    out = CACHE / hashlib.sha256(sources + version).hexdigest()[:16] / "models"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = out.with_name(f".{os.getpid()}-models")
        done = subprocess.run(
            ["go", "build", f"-modfile={modfile}", "-o", str(fresh), "."],
            cwd=PROGRAM,
            env=os.environ | {"CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        fresh.rename(out)
    return out


@pytest.mark.parametrize(
    ("modfile", "names"),
    [
        ("go.mod", ("token bucket", "GCRA", "leaky bucket, waits", "sliding window of slots", "leap array")),
        ("old.mod", ("token bucket, first generation",)),
    ],
)
def test_go_libraries(modfile: str, names: tuple[str, ...]) -> None:
    """x/time/rate of both generations, throttled, uber's ratelimit, sentinel's leap array, and a ring of slots as
    people write it.
    """
    cases: list[dict[str, Any]] = []
    trials = []
    for name in names:
        for seed, (limit, rate, most) in enumerate(TRIALS):
            if name == "leap array":
                limit = Limit(count=limit.count, window_ns=SECOND, slots=2)
            if "waits" in name:  # by callers who do not, here, so that they must come more rarely than it lets go
                limit = Limit(per_s=round(rate * 1.3), burst=limit.burst)
            t, cost = times(seed, rate), costs(seed, 1 if "waits" in name else most)
            trials.append((name, limit, t, cost))
            cases.append(
                {
                    "model": name,
                    "per_s": limit.per_s,
                    "burst": int(limit.burst),
                    "count": int(limit.count),
                    "window_ns": limit.window_ns,
                    "times": t.tolist(),
                    "costs": [int(n) for n in cost],
                }
            )
    done = subprocess.run(
        [str(go_program(modfile))], input=json.dumps(cases), capture_output=True, text=True, check=True, cwd="/"
    )
    answers = [line for line in done.stdout.split("\n") if re.fullmatch("[01]+", line) and len(line) == N]
    assert len(answers) == len(trials), done.stderr[-500:]
    for trial, answer in zip(trials, answers, strict=True):
        same(*trial, [c == "1" for c in answer])


class Clock:
    """Stands in for the modules ``time`` and ``threading`` that limits reads: its sweeper, a thread that wakes when it
    likes, is left out.
    """

    class Timer:
        def __init__(self, *_: object) -> None: ...

        def start(self) -> None: ...

        def is_alive(self) -> bool:
            return True

    def __init__(self, real: Any) -> None:
        self.now_s = 1.0
        self.RLock = real.RLock

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("fixed window, from its first request", "FixedWindowRateLimiter"),
        ("sliding log, in order", "MovingWindowRateLimiter"),
        ("sliding window of two counters", "SlidingWindowCounterRateLimiter"),
    ],
)
def test_python_limits(name: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    limits = pytest.importorskip("limits", reason="needs Python's limits")
    from limits import strategies
    from limits.storage import memory

    clock = Clock(threading)
    monkeypatch.setattr(memory, "time", clock)
    monkeypatch.setattr(memory, "threading", clock)
    for seed, (limit, rate, most) in enumerate(TRIALS):
        limiter = getattr(strategies, strategy)(memory.MemoryStorage())
        item = limits.RateLimitItemPerSecond(int(limit.count))
        t, cost = times(seed, rate), costs(seed, most)
        real = []
        for ns, n in zip(t.tolist(), cost.tolist(), strict=True):
            clock.now_s = ns / SECOND
            real.append(limiter.hit(item, cost=int(n)))
        same(name, limit, t, cost, real)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RespClient]:
    if not shutil.which("redis-server"):
        pytest.skip("needs redis-server")
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield RespClient(RedisUrl.parse(server.url), timeout_s=30)


def asked(redis: RespClient, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [reply for i in range(0, len(commands), 500) for reply in redis.pipeline(commands[i : i + 500])]


def test_a_window_that_a_redis_script_keeps(redis: RespClient) -> None:
    """The demo's and the laboratory's: a sorted set of times."""
    for seed, (limit, rate, _) in enumerate(TRIALS):
        t = times(seed, rate)
        key = f"window:{seed}"  # which no clock but the given one lets expire within the test
        script = re.sub(r"redis\.call\('PEXPIRE'.*\n", "", SCRIPT)
        replies = asked(
            redis,
            [
                ("EVAL", script, 1, key, ns // 10**6, limit.window_ns // 10**6, int(limit.count), i)
                for i, ns in enumerate(t.tolist())
            ],
        )
        same("sliding log", limit, t, np.ones(N), [reply >= 0 for reply in replies])


def test_redis_rate(redis: RespClient) -> None:
    """allowN of go-redis/redis_rate v10.0.1 with its call of TIME replaced by two arguments, and without the expiry by
    Redis's own clock.
    """
    script = """
    local burst, rate, period, cost = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
    local emission_interval = period / rate
    local increment = emission_interval * cost
    local burst_offset = emission_interval * burst
    local jan_1_2017 = 1483228800
    local now = {ARGV[5], ARGV[6]}
    now = (now[1] - jan_1_2017) + (now[2] / 1000000)
    local tat = redis.call("GET", KEYS[1])
    if not tat then tat = now else tat = tonumber(tat) end
    tat = math.max(tat, now)
    local new_tat = tat + increment
    local allow_at = new_tat - burst_offset
    local diff = now - allow_at
    local remaining = diff / emission_interval
    if remaining < 0 then return 0 end
    if new_tat - now > 0 then redis.call("SET", KEYS[1], new_tat) end
    return cost
    """
    for seed, (limit, rate, most) in enumerate(TRIALS):
        t, cost = times(seed, rate), costs(seed, most)
        replies = asked(
            redis,
            [
                (
                    "EVAL",
                    script,
                    1,
                    f"rate:{seed}",
                    int(limit.burst),
                    int(limit.per_s),
                    1,
                    int(n),
                    ns // SECOND,
                    ns % SECOND // 1000,
                )
                for ns, n in zip(t.tolist(), cost.tolist(), strict=True)
            ],
        )
        same("GCRA, redis_rate", limit, t, cost, [reply > 0 for reply in replies])


def test_a_counter_a_window(redis: RespClient) -> None:
    """As Envoy's ratelimit counts: INCRBY and EXPIRE of a key that has the window's begin in its name; what has expired
    by the given clock is removed.
    """
    script = """
    for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])) do
      redis.call('DEL', old)
      redis.call('ZREM', KEYS[1], old)
    end
    redis.call('ZADD', KEYS[1], ARGV[2], KEYS[2])
    return redis.call('INCRBY', KEYS[2], ARGV[3])
    """
    for seed, (limit, rate, most) in enumerate(TRIALS):
        t, cost = times(seed, rate), costs(seed, most)
        since = t - EPOCH_NS  # in whole microseconds, which a sorted set's doubles hold
        replies = asked(
            redis,
            [
                (
                    "EVAL",
                    script,
                    2,
                    f"expiry:{seed}",
                    f"count:{seed}:{ns // limit.window_ns}",
                    ns // 1000,
                    (ns + limit.window_ns) // 1000,
                    int(n),
                )
                for ns, n in zip(since.tolist(), cost.tolist(), strict=True)
            ],
        )
        same("fixed window", limit, t, cost, [reply <= limit.count for reply in replies])


def test_no_model_is_left_out() -> None:
    assert set(MODELS) - SERVED == {"leaky bucket"}
    assert all(math.isfinite(one.memory(TRIALS[0][0])) for one in MODELS.values())
