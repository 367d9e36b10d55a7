"""The correlator over 10 M events and 1 M decisions, one core: ``python -m tests.bench.judge [--rows 11] [--seconds
3600]``.

A steady host with a stall now and then. Its rows are made a minute at a time, outside the measured time, and handed
over a second at a time, as ``tickscope replay`` does. The peer is DuckDB with one thread: rows, and the sum, largest
and 90th percentile of one measure by second, of the same rows, which it gets ready as Arrow columns: the least that
anybody would ask of them. No root.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa

from agent.batch import Batch, make
from agent.correlate.correlator import Correlator
from agent.tables import TABLES
from tests.bench.common import arguments, report

S, MS = 10**9, 10**6
T0 = 5_000 * S
MINUTE = 60
START = 4_000 * S
PROCESSES = np.arange(24) * 17 + 1000
NAMES = np.array([b"api", b"worker", b"redis-server", b"nginx", b"python3", b"java"])
PEERS = np.array([bytes(10) + b"\xff\xff" + bytes((10, 0, 0, n)) + b"\xeb\x18" for n in range(1, 13)], "V18")
STALL_S = 300
#: Parts of the events, and the measure of each table.
MIX = {
    "slow_syscall": (0.25, "duration_ns"),
    "tcp_rtt": (0.24, "rtt_sum_us"),
    "syscall_latency": (0.2, "max_ns"),
    "cpu_wait": (0.1, "wait_ns"),
    "dns_lookup": (0.05, "duration_ns"),
    "tcp_connect": (0.05, "duration_ns"),
    "tls_handshake": (0.03, "duration_ns"),
    "tcp_retransmit": (0.03, "count"),
    "tcp_reset": (0.01, "pid"),
    "process_event": (0.02, "pid"),
    "socket_queue": (0.01, "queue"),
    "queue_lag": (0.01, "poll_ns"),
}
MEASURES = {table: measure for table, (_, measure) in MIX.items()} | {"limiter_decision": "duration_ns"}
#: Told once a second of each process, at one time.
SUMS = ("tcp_rtt", "syscall_latency", "cpu_wait", "queue_lag", "socket_queue")


def code(table: str, column: str, name: str) -> int:
    return TABLES[table].code(column, name)


def events(table: str, n: int, begin_s: int, seconds: int, rng: np.random.Generator) -> np.ndarray:
    """n rows of that table over these seconds, in order of time."""
    t = T0 + begin_s * S + np.sort(rng.integers(0, seconds * S, n))
    if table in SUMS:
        t = t // S * S + 100 * MS
    who = rng.integers(0, len(PROCESSES), n)
    peer = PEERS[rng.integers(0, len(PEERS), n)]
    took = rng.lognormal(np.log(8 * MS), 0.7, n).astype(np.int64)
    columns: dict[str, object] = {
        "t_ns": t,
        "pid": PROCESSES[who],
        "tid": PROCESSES[who],
        "proc_start_ns": START,
        "comm": NAMES[who % len(NAMES)],
        "peer": peer,
        "netns": 4026531840,
        "duration_ns": took,
    }
    columns = {name: values for name, values in columns.items() if name in TABLES[table].by_name}
    more = globals().get(f"_{table}")
    return make(table, n, **(columns | (more(n, who, took, rng) if more else {}))).rows


def _slow_syscall(n: int, _who: np.ndarray, took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    waits = np.arange(n) % 3 == 0
    return {
        "kind": np.where(waits, code("slow_syscall", "kind", "waiting"), code("slow_syscall", "kind", "slow")),
        "blocked_ns": took,
        "run_queue_ns": took // 50,
        "syscall": np.where(waits, b"recvfrom", b"fsync"),
        "fd_type": np.where(waits, b"socket", b"file"),
    }


def _tcp_rtt(n: int, who: np.ndarray, _took: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    us = rng.normal(200, 10, n).astype(np.int64)
    return {
        "role": np.where(who % 6 == 2, code("tcp_rtt", "role", "server"), code("tcp_rtt", "role", "client")),
        "sport": np.where(who % 6 == 2, 6379 + who, 40000 + np.arange(n) % 20000),
        "samples": 10,
        "rtt_sum_us": us * 10,
        "rtt_min_us": us - 20,
        "rtt_max_us": us + 30,
        "srtt_us": us,
        "interval_ns": S,
    }


def _syscall_latency(n: int, _who: np.ndarray, took: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    return {
        "basis": code("syscall_latency", "basis", "blocked"),
        "kind": np.where(np.arange(n) % 2, code("syscall_latency", "kind", "waiting"), 0),
        "interval_ns": S,
        "count": 40,
        "max_ns": took,
        "run_queue_ns": rng.integers(0, 2 * MS, n),
    }


def _cpu_wait(_n: int, who: np.ndarray, took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    return {
        "interval_ns": S,
        "by_pid": PROCESSES[who - 1],
        "by_comm": b"java",
        "wait_ns": took // 20,
        "max_ns": took // 60,
    }


def _dns_lookup(n: int, _who: np.ndarray, _took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    return {
        "name": b"redis.example.org",
        "tries": 1,
        "result": np.where(
            np.arange(n) % 50, code("dns_lookup", "result", "ok"), code("dns_lookup", "result", "nodata")
        ),
    }


def _tcp_connect(n: int, _who: np.ndarray, _took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    return {
        "result": np.where(
            np.arange(n) % 200, code("tcp_connect", "result", "ok"), code("tcp_connect", "result", "failed")
        ),
        "errno": 110,
    }


def _tcp_retransmit(n: int, _who: np.ndarray, _took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    return {"kind": 0, "count": 1, "sport": 40000 + np.arange(n) % 20000}


def _tcp_reset(n: int, _who: np.ndarray, _took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    return {"role": code("tcp_reset", "role", "server"), "direction": np.arange(n) % 2}


def _process_event(n: int, _who: np.ndarray, _took: np.ndarray, _rng: np.random.Generator) -> dict[str, object]:
    """Of processes that come and go."""
    return {
        "pid": 30_000 + np.arange(n) % 2000,
        "kind": code("process_event", "kind", "exited"),
        "exit_code": 0,
        "comm": b"sh",
    }


def _socket_queue(_n: int, who: np.ndarray, _took: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    return {
        "kind": code("socket_queue", "kind", "accept"),
        "sport": 8000 + who,
        "queue": rng.integers(0, 4, len(who)),
        "limit": 511,
        "drops": 0,
    }


def _queue_lag(n: int, who: np.ndarray, _took: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    return {
        "system": b"redis",
        "destination": np.array([b"q%d" % (i % 8) for i in who]),
        "consumer_group": b"workers",
        "peer": PEERS[who % 2],
        "lag_messages": rng.poisson(20, n),
        "oldest_undelivered_s": rng.uniform(0, 0.05, n),
        "oldest_pending_s": 0.1,
        "pending": 3,
        "consumers": 2,
        "in_per_s": 100.0,
        "out_per_s": 100.0,
        "status": b"ok",
        "poll_ns": rng.integers(5 * MS // 10, MS, n),
    }


def _limiter_decision(n: int, who: np.ndarray, _took: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    return {
        "limiter_id": np.array([b"per-user", b"per-route", b"global"])[who % 3],
        "library": b"golang.org/x/time/rate",
        "cost": 1.0,
        "limit_per_s": 100.0,
        "burst": 50.0,
        "window_ns": S,
        "sample_rate": 1.0,
        "result": np.where(
            rng.random(n) < 0.02,
            code("limiter_decision", "result", "refused"),
            code("limiter_decision", "result", "allowed"),
        ),
        "duration_ns": rng.lognormal(np.log(0.8 * MS), 0.4, n).astype(np.int64),
    }


def stall(decisions: np.ndarray, calls: np.ndarray, at_ns: int) -> None:
    """A second in which one process waits for one peer for 0.9 s, in each of its decisions."""
    pid = PROCESSES[0]
    for rows in (decisions, calls):
        hit = (rows["pid"] == pid) & (rows["t_ns"] // S == at_ns // S)
        rows["duration_ns"][hit] = 900 * MS
        if rows is calls:
            rows["blocked_ns"][hit], rows["peer"][hit], rows["kind"][hit] = (
                900 * MS,
                PEERS[0],
                code("slow_syscall", "kind", "waiting"),
            )


def minute(n: int, begin_s: int, seconds: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows by table, of which n are events and a tenth as many decisions."""
    made = {table: events(table, int(n * part), begin_s, seconds, rng) for table, (part, _) in MIX.items()}
    made["limiter_decision"] = events("limiter_decision", n // 10, begin_s, seconds, rng)
    if begin_s % STALL_S == 0 and begin_s:
        stall(made["limiter_decision"], made["slow_syscall"], T0 + begin_s * S + 5 * S)
    return made


def turns(made: dict[str, np.ndarray], begin_s: int, seconds: int, each_s: float) -> Iterator[tuple[list[Batch], int]]:
    """(batches, watermark) for each turn."""
    marks = T0 + begin_s * S + (np.arange(1, round(seconds / each_s) + 1) * each_s * S).astype(np.int64) - 1
    ends = {table: np.searchsorted(rows["t_ns"], marks, "right") for table, rows in made.items()}
    for i, mark in enumerate(marks.tolist()):
        batches = [Batch(table, rows[ends[table][i - 1] if i else 0 : ends[table][i]]) for table, rows in made.items()]
        yield [batch for batch in batches if len(batch.rows)], mark


def peer_s(made: dict[str, np.ndarray]) -> float:
    """What DuckDB takes for the sums by second of these rows."""
    db = duckdb.connect(config={"threads": 1})
    for table, rows in made.items():
        db.register(
            table,
            pa.table(
                {"t_ns": np.ascontiguousarray(rows["t_ns"]), "measure": np.ascontiguousarray(rows[MEASURES[table]])}
            ),
        )
    begun = time.process_time()
    for table in made:
        db.execute(
            f"select t_ns // {S}, count(*), sum(measure), max(measure), quantile_disc(measure, 0.9) from {table} group"
            " by 1"
        ).fetchall()
    took = time.process_time() - begun
    db.close()
    return took


def main() -> None:
    given = arguments(
        __doc__,
        rows=(11.0, "millions of them"),
        seconds=(3600, "that they cover"),
        turn=(1.0, "seconds between watermarks"),
    )
    correlator, rng = Correlator(), np.random.default_rng(1)
    ours = theirs = 0.0
    rows = findings = 0
    reported = 0
    for begin_s in range(0, given.seconds, MINUTE):
        seconds = min(MINUTE, given.seconds - begin_s)
        made = minute(round(given.rows / 11 * 10e6 * seconds / given.seconds), begin_s, seconds, rng)
        rows += sum(map(len, made.values()))
        for batches, mark in turns(made, begin_s, seconds, given.turn):
            begun = time.process_time()
            for batch in batches:
                correlator.feed(batch)
            findings += len(correlator.advance(mark))
            ours += time.process_time() - begun
        theirs += peer_s(made)
        if rows // 1_000_000 > reported:
            reported = rows // 1_000_000
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{rows:>10,} rows  {ours:6.2f} s  {rows / ours:>10,.0f} rows/s  DuckDB {theirs:5.2f} s  peak memory"
                f" {peak:.0f} MiB",
                flush=True,
            )
    if lost := {reason: n for reason, n in correlator.losses().items() if n and reason != "evidence"}:
        raise SystemExit(f"the figure does not count: {lost} {correlator.guard.failures}")
    report(
        f"{rows / 1e6:.0f} M rows over {given.seconds} s judged, one core",
        f"{ours:.2f} s, {findings} states of findings and evidence",
        f"DuckDB, sums by second: {theirs:.2f} s ({ours / theirs:.1f} x)",
        "5 s",
    )


if __name__ == "__main__":
    main()
