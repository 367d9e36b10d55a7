"""A rate limiter in Python: a sliding window that Redis keeps. It reports its decisions to the intake socket."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from pathlib import Path

import hiredis

from agent.common.resp import RedisUrl, RespClient
from agent.demo.redis_part import Server

LIMIT, WINDOW_MS = 16, 1000
#: A sorted set of the admitted requests' times; returns what is left, or -1 for a refusal.
SCRIPT = """
local now = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
local used = redis.call('ZCARD', KEYS[1])
if used >= tonumber(ARGV[3]) then return -1 end
redis.call('ZADD', KEYS[1], now, ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return tonumber(ARGV[3]) - used - 1
"""


def report(key: str, left: int | None, wall_ns: int, duration_ns: int) -> dict[str, object]:
    """The message to the intake. left: what the script returned, None for an error."""
    decision: dict[str, object] = {
        "limiter": "demo:api",
        "library": "tickscope demo",
        "result": "error" if left is None else "refused" if left < 0 else "allowed",
        "key": key,
        "cost": 1,
        "limit_per_s": LIMIT * 1000 / WINDOW_MS,
        "window_ns": WINDOW_MS * 1_000_000,
        "duration_ns": duration_ns,
        "program_wall_ns": wall_ns,
        "tid": threading.get_native_id(),
    }
    if left is not None:
        decision["remaining"] = max(0, left)
    return decision


def decide(server: Server, intake: Path) -> None:
    """About 30 decisions a second for two callers; the busier one is refused now and then."""
    client = RespClient(RedisUrl.parse(server.url), timeout_s=30)
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    number = 0
    while True:
        number += 1
        key = "alice" if random.random() < 0.6 else "bob"
        wall_ns, start_ns = time.time_ns(), time.perf_counter_ns()
        (left,) = client.pipeline(
            [("EVAL", SCRIPT, 1, f"window:{key}", wall_ns // 1_000_000, WINDOW_MS, LIMIT, number)]
        )
        duration_ns = time.perf_counter_ns() - start_ns
        decision = report(key, None if isinstance(left, hiredis.ReplyError) else left, wall_ns, duration_ns)
        # A program must never wait for its observer, nor end by it: no agent, or a full queue, is the report's loss.
        with contextlib.suppress(OSError):
            reports.sendto(json.dumps(decision).encode(), socket.MSG_DONTWAIT, str(intake))
        time.sleep(0.03)
