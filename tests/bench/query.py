"""Queries over a large store: ``python -m tests.bench.query [--rows N] [--by COLUMN]``.

A store of ``tcp_connect`` rows, written and sealed by the agent's own code, is asked for each group's count,
percentiles and largest value: by
``tickscope query``, as it answers by itself and with ``--exact``, and by DuckDB alone on the same Parquet files, with
exact percentiles and with none. Every side is a process of its own, from its start to its end.

Before that a store of 600,000 rows of ``syscall_latency`` (some 14 MB) is asked by several verbs: time, and peak of
memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from agent.batch import make
from agent.common.host import boot_id as this_boot
from agent.store.cells import ERROR
from agent.store.hot import HotStore
from agent.store.spawn import Limits
from tests.bench.common import Figure, arguments, interleaved, ratio, report

_AT_ONCE = 20_000
_WIDE_ROWS = 600_000
_PEER = """
import sys, duckdb
db = duckdb.connect()
files = f"{sys.argv[3]}/*/tcp_connect.parquet"
query = f"SELECT {sys.argv[1]}, count(*), {sys.argv[2]} max(duration_ns) FROM read_parquet('{files}') GROUP BY 1"
print(len(db.execute(query).fetchall()))
"""
_EXACT = "quantile_disc(duration_ns, 0.5), quantile_disc(duration_ns, 0.9), quantile_disc(duration_ns, 0.99),"
_VERB = (sys.executable, "-c", "from agent.cli.main import main; main()")
#: Shows its own peak at its end. That of wait4 is at least this process's size: a child has its memory until exec.
_PEAK = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write(open("/proc/self/status").read()))
{_VERB[-1]}
"""


def fill(path: Path, rows: int) -> None:
    """30 programs and 1,000 peers of unlike frequency, times of connects that spread over three powers of ten, some of
    them failed.
    """
    random = np.random.default_rng(1)
    comms = np.array([b"program-%d" % i for i in range(30)], "S16")
    peers = np.array(
        [
            b"\0" * 10 + b"\xff\xff" + bytes([10, 0, i >> 8, i & 255]) + (6379).to_bytes(2, "little")
            for i in range(1000)
        ],
        "V18",
    )
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    store = HotStore(path, this_boot(), "bench", limits=Limits(max_bytes=1 << 40), seal_command=())
    store.append([make("clock_offset", 1, t_ns=1, real_mono_ns=time.time_ns() - now_ns, boot_mono_ns=0, err_ns=100)])
    for first in range(0, rows, _AT_ONCE):
        who = random.integers(0, len(comms), _AT_ONCE)
        store.append(
            [
                make(
                    "tcp_connect",
                    _AT_ONCE,
                    t_ns=np.arange(first, first + _AT_ONCE) * (now_ns // (rows + _AT_ONCE)),
                    pid=1000 + who,
                    tid=1000 + who,
                    proc_start_ns=who * 10**9,
                    comm=comms[who],
                    cgroup_id=who,
                    sock_id=np.arange(first, first + _AT_ONCE),
                    netns=1,
                    family=0,
                    sport=random.integers(32768, 60000, _AT_ONCE),
                    dport=6379,
                    role=0,
                    peer=peers[np.minimum(random.zipf(1.3, _AT_ONCE), 1000) - 1],
                    duration_ns=random.lognormal(12, 1.5, _AT_ONCE).astype(np.int64),
                    result=(random.random(_AT_ONCE) < 0.02).astype(np.int8),
                )
            ]
        )
    store.close()
    seal(path)


def seal(path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agent.store.seal",
        "--below",
        "99999999",
        "--max-bytes",
        str(1 << 40),
        "--max-age-s",
        "1e9",
    ]
    subprocess.run(command, cwd=path, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=True)


def fill_wide(path: Path, rows: int) -> None:
    """The widest rows, with a histogram each, of 30 programs, in five sealed segments, and 200 findings."""
    random = np.random.default_rng(1)
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    store = HotStore(path, this_boot(), "bench", limits=Limits(max_bytes=1 << 40), seal_command=())
    store.append([make("clock_offset", 1, t_ns=1, real_mono_ns=time.time_ns() - now_ns, boot_mono_ns=0, err_ns=100)])
    at_once = rows // 30
    for first in range(0, rows, at_once):
        who = random.integers(0, 30, at_once)
        took = random.lognormal(9, 2, at_once).astype(np.int64)
        hist = np.zeros((at_once, 64), np.uint32)
        for _ in range(5):
            near = np.clip(np.log2(took + 1).astype(int) + random.integers(-2, 3, at_once), 0, 63)
            hist[np.arange(at_once), near] += random.integers(1, 20, at_once).astype(np.uint32)
        store.append(
            [
                make(
                    "syscall_latency",
                    at_once,
                    t_ns=np.arange(first, first + at_once) * (now_ns // (rows + at_once)),
                    pid=1000 + who,
                    proc_start_ns=who * 10**9,
                    comm=np.array([b"program-%d" % i for i in range(30)], "S16")[who],
                    syscall=np.array([b"read", b"write", b"futex"], "S24")[who % 3],
                    interval_ns=10**9,
                    count=hist.sum(1),
                    sum_ns=took * 3,
                    max_ns=took,
                    hist=hist,
                )
            ]
        )
        if first % (rows // 5) == 0:
            store._rotate()
    ids = [b"%032x" % i for i in range(200)]
    findings = make(
        "finding", 200, finding_id=ids, t_ns=np.arange(200) * 10**6, start_ns=1, end_ns=2, state=1, confidence=1
    )
    store.append([findings])
    store.close()
    seal(path)


def peak(*argv: str) -> tuple[float, float, float]:
    """Seconds, peak resident MB, and those without pages of files, of a verb that writes to a pipe, of which only the
    first line is read. How many pages of its libraries are resident varies by tens of MB with the page cache.
    """
    start = time.perf_counter()
    command = [sys.executable, "-c", _PEAK, *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as verb:
        assert verb.stdout is not None and verb.stderr is not None
        verb.stdout.readline()
        verb.stdout.close()
        reported = verb.stderr.read()
    sizes = {name: int(kb) / 1024 for name, kb in re.findall(r"(\w+):\s*(\d+) kB", reported)}
    assert verb.returncode == 0 and "VmHWM" in sizes, reported
    return time.perf_counter() - start, sizes["VmHWM"], sizes["VmHWM"] - sizes["RssFile"]


def took_s(*argv: str) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - start


def answer(*argv: str) -> dict[str, list[int]]:
    """Percentiles by group. Ends the run where there is no answer."""
    done = subprocess.run([*_VERB, *argv, "-o", "json"], check=True, capture_output=True, text=True)
    return {
        row[argv[-1]]: [row["count"], row["max"], row["p50"], row["p90"], row["p99"]]
        for row in json.loads(done.stdout)["rows"]
    }


def check(near: dict[str, list[int]], exact: dict[str, list[int]]) -> float:
    """The largest relative error of a percentile. Ends the run where counts or largest values are not the same."""
    if near.keys() != exact.keys() or any(near[k][:2] != exact[k][:2] for k in exact):
        raise SystemExit("the answers differ: the figure does not count")
    return max(abs(a - b) / b for k in exact for a, b in zip(near[k][2:], exact[k][2:], strict=True))


def main() -> None:
    given = arguments(__doc__, rows=(10_000_000, "rows of the store"), by=("comm", "column of the groups"))
    with tempfile.TemporaryDirectory(prefix="tickscope-bench-") as directory:
        fill_wide(Path(directory), _WIDE_ROWS)
        verbs = {
            "`query syscall_latency -o ndjson | head -1`": ("query", "syscall_latency", "-o", "ndjson"),
            "`query syscall_latency --limit 1000`": ("query", "syscall_latency", "--limit", "1000"),
            "`query syscall_latency --group-by comm`": ("query", "syscall_latency", "--group-by", "comm"),
            "`findings`": ("findings",),
        }
        for name, argv in verbs.items():
            rounds = [peak(*argv, "--store", directory) for _ in range(given.pairs)]
            seconds, mb, own = (Figure([one[at] for one in rounds]) for at in range(3))
            took = f"{mb.text('.0f')} MB, {own.text('.0f')} of them its own"
            report(f"{_WIDE_ROWS:,} wide rows, {name}", f"{seconds.text('.2f')} s", took, "0.5 s, 120 MB")
    with tempfile.TemporaryDirectory(prefix="tickscope-bench-") as directory:
        fill(Path(directory), given.rows)
        asked = ("query", "tcp_connect", "--store", directory)
        worst = check(answer(*asked, "--group-by", given.by), answer(*asked, "--exact", "--group-by", given.by))
        took = interleaved(
            {
                "query": lambda: took_s(*_VERB, *asked, "--group-by", given.by),
                "query --exact": lambda: took_s(*_VERB, *asked, "--group-by", given.by, "--exact"),
                "duckdb exact": lambda: took_s(sys.executable, "-c", _PEER, given.by, _EXACT, directory),
                "duckdb count": lambda: took_s(sys.executable, "-c", _PEER, given.by, "", directory),
            },
            given.pairs,
        )
    what = f"{given.rows:,} rows by {given.by}"
    report(
        f"{what}, `query --group-by`",
        f"{Figure(took['query']).text('.2f')} s, percentiles {worst:.2%} off at most ({ERROR:.1%} promised)",
        f"DuckDB alone, exact percentiles: {ratio(took['duckdb exact'], took['query']).text('.2f')} x our time; "
        f"none: {ratio(took['duckdb count'], took['query']).text('.2f')} x",
        "0.3 s",
    )
    report(
        f"{what}, `--exact`",
        f"{Figure(took['query --exact']).text('.2f')} s",
        f"DuckDB alone, exact percentiles: {ratio(took['duckdb exact'], took['query --exact']).text('.2f')} x our time",
        "-",
    )


if __name__ == "__main__":
    main()
