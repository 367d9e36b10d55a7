"""Processor time that a decision takes the agent, all its processes together and all that follows (rows, symptoms,
store), by source: ``python -m tests.bench.decisions``. As root, with Go and Redis.

Of the agent's time what it takes with nothing to do is taken off, as measured between the sources. What a decision
takes the program: hot.py (uprobes), attached.py (Redis).
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent.common.resp import RedisUrl, RespClient
from tests.bench.common import Figure, arguments, cpu_s, redis_server, report, running
from tests.bench.intake import send
from tests.bench.memory import descendants
from tests.kernel.go_fixture import go_binary
from tests.kernel.test_redis_wire import GCRA_LIKE
from tests.system.agent import Agent
from tests.unit.otlp_pieces import spans

_PORT, _BATCH = 24318, 50
_SPAN = {"rate_limiting.result": "refused", "rate_limiting.limiter.name": "pay", "rate_limiting.key": "c17"}


def used_s(agent: Agent) -> float:
    return sum(cpu_s(pid) for pid in descendants(agent.process.pid))


def paced(per_s: float, seconds: float, one: Callable[[], object]) -> int:
    start, done = time.monotonic(), 0
    while (due := time.monotonic() - start) < seconds:
        while done < due * per_s:
            one()
            done += 1
        time.sleep(0.002)
    return done


def by_uprobe(program: Path, per_s: int, seconds: float) -> int:
    command = [str(program), "-rate", str(per_s), "-limit", "100", "-burst", "10", "-for", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        reported = json.loads(process.stdout.readline())
        process.stdin.write("\n")
    return int(reported["allowed"] + reported["refused"])


def by_otlp(per_s: int, seconds: float) -> int:
    def post() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", _PORT)
        connection.request("POST", "/v1/traces", spans(*[_SPAN] * _BATCH), {"Content-Type": "application/x-protobuf"})
        connection.getresponse().read()
        connection.close()

    return _BATCH * paced(per_s / _BATCH, seconds, post)


def main() -> None:
    given = arguments(__doc__, seconds=(10.0, "of each source in a round"), rate=(900, "decisions a second"))
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, redis_server() as server:
        program = Path(shutil.copy(go_binary("plain", "hot"), Path(directory) / "hot"))
        client = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{server.port}/0"), timeout_s=10)
        config = f"redis_limiters: 'on'\nredis_ports: [{server.port}]\notlp_receiver: {{http: '127.0.0.1:{_PORT}'}}\n"
        with running(config=config, settle_s=5) as agent:
            sources: dict[str, Callable[[], int]] = {
                "a message (`intake.seq.sock`)": lambda: send(
                    agent.run_dir / "intake.seq.sock", socket.SOCK_SEQPACKET, "bench", given.seconds
                )[0],
                "uprobe (x/time/rate)": lambda: by_uprobe(program, given.rate, given.seconds),
                "Redis, from the wire": lambda: paced(
                    given.rate, given.seconds, lambda: client.pipeline([("EVAL", GCRA_LIKE, 1, "rate:a", 7, 7, 60, 1)])
                ),
                "OTLP (HTTP, protobuf)": lambda: by_otlp(given.rate, given.seconds),
            }
            for _ in range(given.pairs):
                for name, source in sources.items():
                    idle, start = used_s(agent), time.monotonic()
                    time.sleep(given.seconds / 2)
                    quiet_s = (used_s(agent) - idle) / (time.monotonic() - start)
                    before, start = used_s(agent), time.monotonic()
                    made = source()
                    time.sleep(1.5)
                    more_s = used_s(agent) - before - quiet_s * (time.monotonic() - start)
                    took.setdefault(name, []).append(1e6 * more_s / made)
    for name, each in took.items():
        report(
            f"a decision, {name}, {given.rate} a second: the agent's processor time",
            f"{Figure(each).text('.0f')} us",
            "-",
            "-",
        )


if __name__ == "__main__":
    main()
