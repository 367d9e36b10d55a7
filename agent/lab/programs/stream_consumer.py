"""Three consumers of one group. The log has the age of each batch's first message when the batch was done."""

from __future__ import annotations

import time

import hiredis

from agent.common.clocks import boot_ns
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.lab.program import LabProgram, Run
from agent.lab.programs.stream_producer import GROUP, STREAM, URL

NAMES = (f"{STREAM}/{GROUP}", f"{STREAM} group {GROUP}")


def consume(run: Run) -> None:
    run.listen()
    client = RespClient(RedisUrl.parse(URL), timeout_s=10)
    me = run.program.name
    while True:
        try:
            (got,) = client.pipeline(
                [("XREADGROUP", "GROUP", GROUP, me, "COUNT", 4, "BLOCK", 1000, "STREAMS", STREAM, ">")]
            )
            if isinstance(got, hiredis.ReplyError):
                (made,) = client.pipeline([("XGROUP", "CREATE", STREAM, GROUP, "$", "MKSTREAM")])
                if isinstance(made, hiredis.ReplyError):  # the server refuses writes
                    run.log("handle", boot_ns(), "down")
                    time.sleep(0.2)
                continue
            if not got:
                continue
            entries = [entry[0] for entry in got[0][1]]
            time.sleep(run.settings["work_s"])
            client.pipeline([("XACK", STREAM, GROUP, *entries)])
        except RedisDown:
            run.log("handle", boot_ns(), "down")
            time.sleep(0.2)
            continue
        end_ns = boot_ns()
        age_ns = max(0, time.time_ns() - int(entries[0].split(b"-")[0]) * 1_000_000)
        run.log("handle", end_ns - age_ns, end_ns=end_ns)


PROGRAMS = tuple(
    LabProgram(f"consumer{n}", consume, settings={"work_s": 0.02}, names=NAMES, uses=("redis", "producer", "group"))
    for n in (1, 2, 3)
)
