"""A process that polls one server when it is asked to, and reports what that took."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

_CODE = """
import sys, time
from agent.queues.catalogue import broker
(queue,) = broker(sys.argv[1]).sources([sys.argv[2]])
for _ in sys.stdin:
    began = time.perf_counter()
    cpu = time.process_time()
    rows = queue.poll()
    took = time.perf_counter() - began
    pss = next(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
    down = [row["reason"] for row in rows if row.get("status") == "down" or "destination" not in row][:1]
    print(took, time.process_time() - cpu, pss, len(rows), len(down), file=sys.stdout, flush=True)
    if down:
        print(down[0], file=sys.stderr, flush=True)
"""


class Poll(NamedTuple):
    """took, cpu: seconds. pss: kB of the process. down: whether the server did not answer."""

    took: float
    cpu: float
    pss: float
    rows: float
    down: float


class Poller:
    """kind: of the broker, as in the settings."""

    def __init__(self, kind: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, kind, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def poll(self) -> Poll:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("poll", file=self._process.stdin, flush=True)
        return Poll(*(float(word) for word in self._process.stdout.readline().split()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
