"""Leases in Redis, as a scheduler or a leader election keeps them: Redis expires them by its wall clock, and their
holders renew them just in time.

The holders simulate other machines, with clocks that do not move with this one, so they use CLOCK_MONOTONIC_RAW.
"""

from __future__ import annotations

import time
from heapq import heapify, heapreplace

import hiredis

from agent.common.clocks import boot_ns
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.lab.program import LabProgram, Run
from agent.lab.programs.stream_producer import URL

COUNT, LIFE_MS, RENEW_NS = 16, 5000, 4_650_000_000
#: Returns whether the lease was still held; it is held again after that.
RENEW = """
local held = redis.call('EXISTS', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[1])
return held
"""


def _raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def hold(run: Run) -> None:
    client = RespClient(RedisUrl.parse(URL), timeout_s=10)
    now_ns = _raw_ns()
    due = [(now_ns + n * RENEW_NS // COUNT, n) for n in range(COUNT)]
    heapify(due)
    fresh = set(range(COUNT))
    while True:
        due_ns, lease = due[0]
        while (left_ns := due_ns - _raw_ns()) > 0:
            time.sleep(left_ns * 0.9e-9 + 0.0005)  # a sleep follows the slewed clock
        start_ns = boot_ns()
        try:
            (held,) = client.pipeline([("EVAL", RENEW, 1, f"lease:{lease}", LIFE_MS)])
            outcome = "failed" if isinstance(held, hiredis.ReplyError) else "ok" if held or lease in fresh else "lost"
            fresh.discard(lease)
        except RedisDown:
            outcome = "down"
        run.log("renew", start_ns, outcome)
        heapreplace(due, (max(due_ns + RENEW_NS, _raw_ns()), lease))


PROGRAMS = (LabProgram("leases", hold, uses=("redis", "clock")),)
