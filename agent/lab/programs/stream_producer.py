"""Adds orders to a Redis stream at a steady rate. Orders that a stalled server delayed follow in a burst, as in
production.
"""

from __future__ import annotations

import time

import hiredis

from agent.common.clocks import boot_ns
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.lab.program import LOOPBACK, LabProgram, Run
from agent.lab.programs.redis_server import PORT

STREAM, GROUP = "orders", "billing"
URL = f"redis://{LOOPBACK}:{PORT}/0"


def produce(run: Run) -> None:
    run.listen()
    client = RespClient(RedisUrl.parse(URL), timeout_s=10)
    due, last = 0.0, time.monotonic()
    while True:
        now = time.monotonic()
        due, last = min(2000.0, due + (now - last) * run.settings["per_s"]), now
        if due >= 1:
            start_ns, n = boot_ns(), int(due)
            try:
                replies = client.pipeline([("XADD", STREAM, "MAXLEN", "~", 20000, "*", "order", k) for k in range(n)])
            except RedisDown:
                run.log("add", start_ns, "down")
            else:
                due -= n
                run.log(
                    "add",
                    start_ns,
                    "refused_by_redis" if any(isinstance(r, hiredis.ReplyError) for r in replies) else "ok",
                )
        time.sleep(0.05)


PROGRAMS = (LabProgram("producer", produce, settings={"per_s": 40.0}, names=(STREAM,), uses=("redis",)),)
