"""APIs with a sliding-window limiter in a Redis script; one for each place of Redis."""

from __future__ import annotations

import time
from functools import partial
from itertools import count

import hiredis

from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.demo.limiter_part import SCRIPT
from agent.lab.program import Run
from agent.lab.programs.limiters import api, decide
from agent.lab.programs.redis_server import PLACES, PORT

KEY = "window"


def serve(address: str, run: Run) -> None:
    client = RespClient(RedisUrl.parse(f"redis://{address}:{PORT}/0"), timeout_s=10)
    number = count()

    def check() -> int:
        try:
            (left,) = client.pipeline(
                [("EVAL", SCRIPT, 1, KEY, time.time_ns() // 1_000_000, 1000, run.settings["limit"], next(number))]
            )
        except RedisDown as error:
            raise ConnectionError(str(error)) from error
        if isinstance(left, hiredis.ReplyError):
            raise ConnectionError(str(left))
        return int(left)

    decide(run, check)


PROGRAMS = tuple(
    api(f"api-{name}", partial(serve, address), name, "clock", *(["link"] if name.endswith("far") else []), per_s=25.0)
    for name, address in PLACES.items()
)
