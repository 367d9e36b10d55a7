"""A whole agent beside two consumers of a Redis stream: one is killed with what it holds, the other gets it again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.ports import free_port
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

ROOT = Path(__file__).parents[2]
CONSUMER = Path(__file__).parent / "programs" / "consume.py"
HELD = 23


def test_what_a_killed_consumer_held_is_consumed_again_and_the_kill_is_the_cause(
    start: Callable[..., Agent], tmp_path: Path
) -> None:
    page = free_port()
    with ExitStack() as ends:
        redis = ends.enter_context(Redis(tmp_path))
        redis.do("XGROUP", "CREATE", "orders", "billing", "$", "MKSTREAM")
        agent = start("--redis", f"{redis.url}?id=n", config=f"prometheus: 127.0.0.1:{page}\n").ready()

        def consumer(name: str, what: str) -> subprocess.Popen[bytes]:
            intake = os.fspath(agent.run_dir / "intake.sock")
            one = subprocess.Popen(
                [sys.executable, CONSUMER, redis.url, intake, name, what], env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
            ends.callback(one.wait)
            ends.callback(one.kill)
            return one

        first = consumer("a", "hold")
        for n in range(HELD):
            redis.do("XADD", "orders", "*", "n", n)

        def held() -> int:
            rows = agent.json("query", "message_order", "--where", f"pid = {first.pid}")["rows"]
            return int(sum(row["messages"] for row in rows))

        agent.until(lambda: held() == HELD)
        first.kill()
        time.sleep(1.2)
        second = consumer("b", "take")
        for n in range(HELD, 3 * HELD):
            redis.do("XADD", "orders", "*", "n", n)
            time.sleep(0.05)
        finding = agent.until(
            lambda: next(
                (
                    row
                    for row in agent.json("findings")["rows"]
                    if row["symptom"] == "duplicates" and f"pid {first.pid}" in row["sentence"]
                ),
                None,
            )
        )
        rows = agent.rows("message_order", "source = 'consumer'", 2)
        read = agent.rows("message_order", "source = 'sample'", 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            metrics = answer.read().decode()
    assert (finding["cause"], finding["culprit_pid"]) == ("process_killed", first.pid), finding
    assert f"{HELD} of " in str(finding["sentence"])
    assert {row["pid"] for row in rows} == {first.pid, second.pid}
    assert sum(row["messages"] for row in rows) == 4 * HELD
    assert sum(row["duplicates"] for row in rows) == HELD
    assert {row["first_pid"] for row in rows if row["duplicates"]} == {first.pid}
    assert sum(row["out_of_order"] for row in rows) == 0
    assert sum(row["messages"] for row in read) == 3 * HELD and not any(row["duplicates"] for row in read)
    (line,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("tickscope_queue_messages_duplicates_total") and '"consumer"' in line
    ]
    assert line.endswith(f" {HELD}")
