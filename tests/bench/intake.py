"""What arrives of a program's 1,000 decisions a second while another user floods the intake: ``python -m
tests.bench.intake [--seconds N]``.

The flood is the user nobody's, in two processes with 64 sockets each that send what they can without waiting, to
datagrams and to connections alike, malformed. The program sends from sockets of each kind, non-blocking, and counts
what it could not send. Nothing may be lost that it could.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.common import arguments, report
from tests.system.agent import Agent

_RATE = 1000
_FLOOD = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
kind = getattr(socket, sys.argv[2])
socks = []
for _ in range(64):
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.setblocking(False)
    try:
        sock.connect(sys.argv[1])
        socks.append(sock)
    except OSError:
        sock.close()
print("flooding", flush=True)
while True:
    for sock in socks:
        try:
            for _ in range(64):
                sock.send(b'{"limiter": "flood", "result"')
        except OSError:
            pass
"""


def send(path: Path, kind: int, limiter: str, seconds: float) -> tuple[int, int]:
    """(sent, could not be sent) of that many seconds' decisions."""
    sent = failed = 0
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.setblocking(False)
        sock.connect(str(path))
        start = time.monotonic()
        while (due := time.monotonic() - start) < seconds:
            while sent + failed < due * _RATE:
                try:
                    sock.send(json.dumps({"limiter": limiter, "result": "allowed"}).encode())
                    sent += 1
                except BlockingIOError:
                    failed += 1
            time.sleep(0.001)
    return sent, failed


def arrived(agent: Agent, limiter: str) -> int:
    rows = agent.json("sql", f"select count(*) n from limiter_decision where limiter_id = '{limiter}'")["rows"]
    return int(rows[0]["n"])


def main() -> None:
    given = arguments(__doc__, seconds=(5.0, "of sending to each socket"))
    root = Path(tempfile.mkdtemp(prefix="tickscope-bench-"))
    root.chmod(0o755)
    agent = Agent(root).ready()
    kinds = {"SOCK_DGRAM": "intake.sock", "SOCK_SEQPACKET": "intake.seq.sock"}
    kinds = {kind: name for kind, name in kinds.items() if (agent.run_dir / name).exists()}
    try:
        for flooded in ((), *[(kind,) for kind in kinds], tuple(kinds)):
            floods = [
                subprocess.Popen(
                    [sys.executable, "-c", _FLOOD, str(agent.run_dir / kinds[kind]), kind], stdout=subprocess.PIPE
                )
                for kind in flooded
                for _ in range(2)
            ]
            for one in floods:
                assert one.stdout is not None
                one.stdout.readline()
            time.sleep(0.5)
            for kind, name in kinds.items():
                limiter = f"{kind} {' '.join(flooded)}"
                sent, failed = send(agent.run_dir / name, getattr(socket, kind), limiter, given.seconds)
                time.sleep(1)
                came = arrived(agent, limiter)
                report(
                    f"decisions of 1,000 a second that arrive by {name}, flooded: {', '.join(flooded) or 'nothing'}",
                    f"{came} of {sent + failed} ({failed} could not be sent, {sent - came} lost)",
                    "-",
                    "all, by a connection",
                )
            for one in floods:
                one.kill()
                one.wait()
        print(agent.status().get("bounds"), agent.status()["loss"], agent.status()["cpu_s"], file=sys.stderr)
    finally:
        agent.stop()


if __name__ == "__main__":
    main()
