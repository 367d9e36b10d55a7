"""``tickscope top`` beside top and, if it is installed, htop: ``python -m tests.bench.top [--seconds N] [--rows N]``.

Each is shown on a pseudo-terminal of 120 x 40 at one refresh a second, all at the same time, beside a store that is
written as by an agent with so many rows a second: limiter decisions of eight limiters, blocked calls of 60 processes,
queues. What is measured is their own processor time and memory, after the start; and how often the screen changed.
No root, no agent.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from agent.batch import make
from agent.common.clocks import boot_ns
from agent.common.host import boot_id
from agent.store.hot import HotStore
from tests.bench.common import Figure, arguments, cpu_s, report
from tests.screens import Program

S = 1_000_000_000
_BEFORE_S = 300  # rows that the store has at the start


class Writer(threading.Thread):
    """Writes a second's rows each second."""

    def __init__(self, path: Path, decisions: int) -> None:
        super().__init__(daemon=True)
        self._decisions, self.ended = decisions, threading.Event()
        self._store = HotStore(path, boot_id(), "bench", seal_command=())
        now = boot_ns()
        sample = {"t_ns": now - _BEFORE_S * S, "real_mono_ns": time.time_ns() - now, "boot_mono_ns": 0, "err_ns": 100}
        self._store.append([make("clock_offset", 1, **sample)])
        for second in range(_BEFORE_S):
            self._write(now - (_BEFORE_S - second) * S, second)

    def _write(self, t_ns: int, second: int) -> None:
        n = self._decisions
        names = np.array([b"limiter-%d" % (i % 8) for i in range(n)])
        limiter = {
            "limiter_id": names,
            "library": b"x/time/rate",
            "limit_per_s": 100.0,
            "sample_rate": 1.0,
            "cost": 1.0,
        }
        process = {"pid": os.getpid(), "comm": b"api"}
        calls = {"syscall": b"fsync", "kind": 0, "basis": 2, "count": 3, "interval_ns": S}
        calls |= {"sum_ns": 10**6, "max_ns": 10**5, "run_queue_ns": 300}
        batches = [
            make("limiter_decision", n, t_ns=t_ns + np.arange(n) * (S // n), result=0, **limiter, **process),
            make("syscall_latency", 60, t_ns=t_ns, pid=1 + np.arange(60), comm=b"worker", **calls),
            make("tcp_rtt", 50, t_ns=t_ns, pid=1 + np.arange(50)),
        ]
        if second % 3 == 0:
            queues = np.array([b"queue-%d" % i for i in range(20)])
            lag = {"system": b"redis", "cluster": b"c", "consumer_group": b"g", "lag_messages": second, "status": b"ok"}
            batches.append(make("queue_lag", 20, t_ns=t_ns, destination=queues, exact=1, **lag))
        self._store.append(batches, t_ns + S)

    def run(self) -> None:
        second = _BEFORE_S
        while not self.ended.wait(1.0):
            self._write(boot_ns() - S, second := second + 1)
        self._store.close()


def main() -> None:
    given = arguments(__doc__, seconds=(60.0, "measured time"), rows=(100, "limiter decisions a second"))
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder, "store"), given.rows)
        writer.start()
        peers = [[name, "-d", "10" if name == "htop" else "1"] for name in ("htop", "top") if shutil.which(name)]
        begun = time.monotonic()
        ours = Program(["top", "--store", f"{folder}/store"], 120, 40)
        programs = {"tickscope top": ours, **{peer[0]: Program(peer, 120, 40, program="") for peer in peers}}
        ours.until(lambda text: "FINDINGS" in text)
        first_s = time.monotonic() - begun
        ours.until(lambda text: "reading the store" not in text, 60)
        whole_s = time.monotonic() - begun
        start_s = cpu_s(ours.pid)
        for program in programs.values():
            program.read(3)
        used = {name: cpu_s(program.pid) for name, program in programs.items()}
        screens: dict[str, set[str]] = {name: set() for name in programs}
        measured = time.monotonic()
        while time.monotonic() < measured + given.seconds:
            for name, program in programs.items():
                program.read(0.1)
                screens[name].add(program.text())
        took = time.monotonic() - measured
        shares = {name: 100 * (cpu_s(program.pid) - used[name]) / took for name, program in programs.items()}
        sizes = {name: pss(program.pid) for name, program in programs.items()}
        for program in programs.values():
            program.__exit__()
        writer.ended.set()
        writer.join()
    others = "; ".join(
        f"{name} {shares[name]:.2f} %, {sizes[name]:.0f} MiB" for name in shares if name != "tickscope top"
    )
    what = f"`top`, 120 x 40, {given.rows} decisions a second, {took:.0f} s: processor time, memory (PSS)"
    report(what, f"{Figure([shares['tickscope top']]).median:.2f} %, {sizes['tickscope top']:.0f} MiB", others, "2 %")
    counts = {name: f"{len(seen) / took:.2f}" for name, seen in screens.items()}
    report("the same: screens a second", counts.pop("tickscope top"), "; ".join(map(" ".join, counts.items())), "1")
    report(
        "the same: first screen; all panes; processor time until then",
        f"{first_s:.2f} s; {whole_s:.2f} s; {start_s:.2f} s",
        "-",
        "-",
    )


def pss(pid: int) -> float:
    """MiB."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
