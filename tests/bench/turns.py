"""The longest turns of the agent's loop: ``python -m tests.bench.turns [--seconds N]``.

A turn is from one wait for something to happen to the next. The agent is the installed one, whole; what times its turns
is put into it from outside and costs two clock reads a turn. Meanwhile programs start, connect,
wait and make decisions, and its status is asked.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

from tests.bench.common import arguments, report, running
from tests.inject import injected
from tests.system.agent import Agent

_TIMED = """
import agent.service.loop, agent.errors, os, time
Loop, turns, state = agent.service.loop.Loop, [], [0]
begin, end = Loop.run, Loop.finish
def run(self, *args):
    wait = self.selector.select
    def select(timeout=None):
        now = time.perf_counter_ns()
        if state[0] and len(turns) < 1_000_000:
            turns.append(now - state[0])
        try:
            return wait(timeout)
        finally:
            state[0] = time.perf_counter_ns()
    self.selector.select = select
    return begin(self, *args)
def finish(self):
    turns.sort()
    at = lambda share: turns[min(len(turns) - 1, int(len(turns) * share))]
    agent.errors.say(f"turns n={len(turns)} p50={at(.5)} p99={at(.99)} p999={at(.999)} longest={turns[-5:][::-1]}")
    return end(self)
Loop.run, Loop.finish = run, finish
"""


def work(agent: Agent, until: float) -> None:
    """Some of everything: 20 programs, 100 connections and 1,000 decisions a second, a status a second."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as intake,
        socket.create_server(("127.0.0.1", 0), backlog=200) as server,
    ):
        intake.connect(str(agent.run_dir / "intake.sock"))
        decision = json.dumps({"limiter": "bench", "result": "allowed", "key": "a"}).encode()
        turn = 0
        while time.monotonic() < until:
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
            for _ in range(5):
                with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
                    client.send(b"x" * 100)
                    peer.recv(100)
            for _ in range(50):
                intake.send(decision)
            turn += 1
            time.sleep(0.05)


def ask(agent: Agent, until: float) -> None:
    while time.monotonic() < until:
        subprocess.run(
            [
                sys.executable,
                "-c",
                "from agent.service.control import ask; import sys; ask(sys.argv[1], 'status')",
                str(agent.run_dir),
            ],
            check=True,
        )
        time.sleep(1)


def main() -> None:
    given = arguments(__doc__, seconds=(30.0, "to watch"), window_ms=(20.0, "length of the sampling window"))
    with injected(_TIMED) as env, running(config=f"syscalls_window_ms: {given.window_ms:g}\n", env=env) as agent:
        until = time.monotonic() + given.seconds
        asker = threading.Thread(target=ask, args=(agent, until))
        asker.start()
        work(agent, until)
        asker.join()
        errors = agent.errors
        agent.lines = errors.open()  # type: ignore[attr-defined]  # outlives its directory
    found = re.search(r"turns n=(\d+) p50=(\d+) p99=(\d+) p999=(\d+) longest=\[(.*)\]", agent.lines.read())  # type: ignore[attr-defined]
    assert found is not None
    n, p50, p99, p999 = (int(found[i]) for i in range(1, 5))
    longest = ", ".join(f"{int(x) / 1e6:.1f}" for x in found[5].split(","))
    what = f"p50 {p50 / 1e6:.2f} ms, p99 {p99 / 1e6:.2f} ms, p99.9 {p999 / 1e6:.2f} ms, longest {longest} ms (n={n})"
    report(f"turns of the loop, window of {given.window_ms:g} ms, {given.seconds:.0f} s", what, "-", "-")


if __name__ == "__main__":
    main()
