"""The report of an hour with many rows, and a zoom of its page: ``python -m tests.bench.report [--rows N]``.

A store of an hour, written and sealed by the agent's own code, has as many decisions as connects, slow system calls,
TLS handshakes and rows of round-trip times. A process of its own makes the report: time from its start to its end, and
its peak of memory. DuckDB alone counts the same rows by second, as a floor. The server of ``tickscope ui`` answers
what a page with three panels in sight asks for when the user zooms to a part of that hour.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np

from agent.batch import make
from agent.cli.ui_server import UiServer
from agent.common.host import boot_id as this_boot
from agent.store.hot import HotStore
from agent.store.spawn import Limits
from tests.bench.common import Figure, arguments, report
from tests.bench.query import peak, seal

_HOUR_NS, _AT_ONCE = 3_600 * 10**9, 20_000
_TABLES = ("limiter_decision", "tcp_connect", "slow_syscall", "tls_handshake", "tcp_rtt")
_PEER = """
import sys, duckdb
db = duckdb.connect(config={"threads": 1})
for table in sys.argv[2:]:
    db.execute(f"SELECT t_ns // 6000000000, count(*) FROM read_parquet('{sys.argv[1]}/*/{table}.parquet') GROUP BY 1")
    db.fetchall()
"""


def fill(path: Path, rows: int) -> None:
    """30 programs, 200 peers and 20 limiters of unlike frequency."""
    random = np.random.default_rng(1)
    store = HotStore(path, this_boot(), "bench", limits=Limits(max_bytes=1 << 40), seal_command=())
    store.append([make("clock_offset", 1, t_ns=1, real_mono_ns=time.time_ns() - _HOUR_NS, boot_mono_ns=0, err_ns=100)])
    comms = np.array([b"program-%d" % i for i in range(30)], "S16")
    ids = np.array([b"shop:limit-%d" % i for i in range(20)], "S128")
    peers = np.array(
        [b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, i]) + (6379).to_bytes(2, "little") for i in range(200)], "V18"
    )
    for first in range(0, rows // len(_TABLES), _AT_ONCE):
        who = random.zipf(1.5, _AT_ONCE) % len(comms)
        t_ns = np.arange(first, first + _AT_ONCE) * (len(_TABLES) * _HOUR_NS // rows)
        process = {"t_ns": t_ns, "pid": 1000 + who, "tid": 1000 + who, "proc_start_ns": who * 10**9, "comm": comms[who]}
        took = random.lognormal(12, 1.5, _AT_ONCE).astype(np.int64)
        socket = {**process, "peer": peers[who * 6], "sport": 40_000, "dport": 6379, "role": 0, "family": 0}
        store.append(
            [
                make(
                    "limiter_decision", _AT_ONCE, **process, limiter_id=ids[who % 20], result=took % 2, duration_ns=took
                ),
                make("tcp_connect", _AT_ONCE, **socket, duration_ns=took, result=0),
                make("slow_syscall", _AT_ONCE, **process, kind=0, syscall=b"write", duration_ns=took),
                make("tls_handshake", _AT_ONCE, **socket, duration_ns=took, result=0),
                make("tcp_rtt", _AT_ONCE, **socket, interval_ns=10**9, rtt_max_us=took // 1000),
            ]
        )
    store.close()
    seal(path)


_SEEN = "Duration of decisions|Connects, slowest|Slow system calls"


def zooms(store: str, pairs: int) -> dict[int, Figure]:
    """Seconds for an answer, by the seconds that the page zooms to."""
    server, found = UiServer(("127.0.0.1", 0), store, "token"), {}
    for length in (60, 600, 3600):
        ends = {"boot": this_boot(), "from": 0, "to": length, "titles": _SEEN, "token": "token"}
        url = f"http://127.0.0.1:{server.port}/panels?{urllib.parse.urlencode(ends)}"
        times = []
        for _ in range(pairs + 1):  # the first one is not counted
            start = time.perf_counter()
            urllib.request.urlopen(url).read()
            times.append(time.perf_counter() - start)
        found[length] = Figure(times[1:])
    server.close()
    return found


def main() -> None:
    given = arguments(__doc__, rows=(10_000_000, "rows of the store"))
    with tempfile.TemporaryDirectory(prefix="tickscope-bench-") as directory:
        fill(Path(directory), given.rows)
        page = Path(directory, "report.html")
        asked = ("report", "--since", "boot+0", "-o", str(page), "--store", directory)
        rounds = [peak(*asked) for _ in range(given.pairs)]
        floors = []
        for _ in range(given.pairs):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", _PEER, directory, *_TABLES], check=True)
            floors.append(time.perf_counter() - start)
        seconds, mb, own = (Figure([one[at] for one in rounds]) for at in range(3))
        size, zoomed = page.stat().st_size / 1e6, zooms(directory, given.pairs)
    report(
        f"{given.rows:,} rows in an hour, `report --since`, {size:.1f} MB",
        f"{seconds.text('.2f')} s, {mb.text('.0f')} MB, {own.text('.0f')} of them its own",
        f"DuckDB alone, counts by time: {Figure(floors).text('.2f')} s",
        "3 s, 200 MB, 2 MB",
    )
    answers = ", ".join(f"{figure.text('.3f')} s to {length} s" for length, figure in zoomed.items())
    report(f"a zoom of the page with {given.rows:,} rows", answers, "", "0.15 s")


if __name__ == "__main__":
    main()
