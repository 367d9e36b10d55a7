"""Synthetic batches for tests of the correlator: a healthy busy host, and what can go wrong on it. Seeded, no clock, no
I/O.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from agent.batch import Batch, make
from agent.cli.findings import joined
from agent.correlate.correlator import Correlator
from agent.correlate.thresholds import CorrelatorConfig
from agent.tables import TABLES

S, MS, US = 1_000_000_000, 1_000_000, 1_000
T0 = 5_000 * S
REDIS_PID, APP_PID, WEB_PID = 900, 4242, 700
START = 4_900 * S + 123_456_789


def peer(ip: str, port: int) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes(map(int, ip.split("."))) + struct.pack("<H", port)


REDIS = peer("127.0.0.1", 6399)
PEER = np.frombuffer(REDIS, "V18")


def code(table: str, column: str, name: str) -> int:
    return TABLES[table].code(column, name)


class Host:
    """Rows of a host between two seconds after T0; methods add traffic, ``batches`` hands it out second by second."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.made: list[Batch] = []

    def add(self, table: str, n: int | None = None, /, *, at: Any = None, rtt: Any = None, **columns: object) -> None:
        """Rows of a table, as many as their times unless ``n`` is given. at: seconds after T0. rtt: samples, and their
        least, mean and greatest in us. A column whose values have names is given one. A process whose start is not
        given began at START.
        """
        known = TABLES[table].by_name
        given = {name: code(table, name, value) if isinstance(value, str) else value for name, value in columns.items()}
        if at is not None:
            given["t_ns"] = T0 + (np.asarray(at) * S).astype(np.int64)
        if rtt is not None:
            samples, least, mean, most = rtt
            given |= {"samples": samples, "rtt_sum_us": samples * mean, "rtt_min_us": least, "rtt_max_us": most}
            given["srtt_us"] = mean
        if "pid" in given and "proc_start_ns" in known:
            given.setdefault("proc_start_ns", START)
        self.made.append(make(table, np.size(given["t_ns"]) if n is None else n, **given))

    def decisions(
        self,
        a: float,
        b: float,
        rate: float = 50,
        limiter: bytes = b"api",
        pid: int = APP_PID,
        refused: float = 0.0,
        ms: float = 0.8,
        **more: object,
    ) -> None:
        """Poisson decisions with log-normal durations; ``refused`` is the share."""
        n = int(self.rng.poisson(rate * (b - a)))
        t = T0 + (np.sort(self.rng.uniform(a, b, n)) * S).astype(np.int64)
        no = self.rng.random(n) < refused
        columns: dict[str, object] = {
            "t_ns": t,
            "pid": pid,
            "tid": pid,
            "proc_start_ns": START,
            "comm": b"python3",
            "limiter_id": limiter,
            "library": b"own",
            "cost": 1.0,
            "result": np.where(
                no, code("limiter_decision", "result", "refused"), code("limiter_decision", "result", "allowed")
            ),
            "duration_ns": (self.rng.lognormal(np.log(ms * MS), 0.4, n)).astype(np.int64),
        }
        self.add("limiter_decision", n, **(columns | more))

    def rtt(
        self,
        a: float,
        b: float,
        us: float = 45,
        to: bytes = REDIS,
        pid: int = APP_PID,
        every: float = 1.0,
        **more: object,
    ) -> None:
        t = T0 + (np.arange(a, b, every) * S).astype(np.int64)
        v = self.rng.normal(us, us / 10, len(t)).astype(np.int64)
        self.add(
            "tcp_rtt",
            t_ns=t,
            pid=pid,
            proc_start_ns=START,
            role="client",
            peer=to,
            rtt=(10, v, v, v + 5),
            sock_id=77,
            interval_ns=S,
            **more,
        )

    def server(self, a: float, b: float) -> None:
        """The Redis process's own side of the connection."""
        t = T0 + (np.arange(a, b) * S).astype(np.int64)
        self.add(
            "tcp_rtt",
            t_ns=t,
            pid=REDIS_PID,
            comm=b"redis-server",
            role="server",
            sport=6399,
            peer=peer("127.0.0.1", 40000),
            rtt=(10, 40, 45, 50),
        )

    def queue(
        self,
        a: float,
        b: float,
        lag: object = None,
        age: object = None,
        incoming: float = 100,
        out: float | None = None,
        consumers: int = 2,
        poll_ms: float = 0.7,
        destination: bytes = b"orders",
        **more: object,
    ) -> None:
        t = T0 + ((np.arange(a, b) + 0.37) * S).astype(np.int64)
        n = len(t)
        noise = self.rng.poisson(20, n)
        self.add(
            "queue_lag",
            n,
            **(
                {
                    "t_ns": t,
                    "system": b"redis",
                    "peer": PEER,
                    "destination": destination,
                    "consumer_group": b"workers",
                    "lag_messages": noise if lag is None else lag,
                    "oldest_undelivered_s": noise / max(incoming, 1) if age is None else age,
                    "oldest_pending_s": 0.1,
                    "pending": 3,
                    "consumers": consumers,
                    "in_per_s": self.rng.normal(incoming, incoming / 20, n).clip(0),
                    "out_per_s": (
                        self.rng.normal(incoming if out is None else out, incoming / 20, n).clip(0) if out != 0 else 0.0
                    ),
                    "status": b"ok",
                    "poll_ns": (self.rng.lognormal(np.log(poll_ms * MS), 0.3, n)).astype(np.int64),
                }
                | more
            ),
        )

    def accept(self, a: float, b: float, queue: object = None, limit: int = 511, drops: object = 12) -> None:
        t = T0 + ((np.arange(a, b) + 0.2) * S).astype(np.int64)
        self.add(
            "socket_queue",
            t_ns=t,
            pid=WEB_PID,
            comm=b"nginx",
            kind="accept",
            sport=8080,
            queue=self.rng.poisson(2, len(t)) if queue is None else queue,
            limit=limit,
            drops=drops,
        )

    def web(self, a: float, b: float) -> None:
        """What a busy web server makes: handshakes, slow calls, resets, retransmits now and then."""
        n = int(20 * (b - a))
        t = T0 + (np.sort(self.rng.uniform(a, b, n)) * S).astype(np.int64)
        self.add(
            "tls_handshake",
            n,
            t_ns=t,
            pid=WEB_PID,
            tid=WEB_PID,
            duration_ns=self.rng.lognormal(np.log(8 * MS), 0.6, n).astype(np.int64),
        )
        self.add(
            "slow_syscall",
            n,
            t_ns=t + 5,
            pid=WEB_PID,
            tid=WEB_PID,
            kind=0,
            syscall=b"fsync",
            fd_type=b"file",
            duration_ns=self.rng.lognormal(np.log(15 * MS), 0.5, n).astype(np.int64),
            run_queue_ns=1 * MS,
        )
        self.add("tcp_reset", n // 10, t_ns=t[: n // 10], pid=WEB_PID, peer=peer("10.0.0.9", 50000))

    def healthy(self, a: float, b: float) -> Host:
        self.decisions(a, b)
        self.rtt(a, b)
        self.server(a, b)
        self.queue(a, b)
        self.accept(a, b)
        self.web(a, b)
        return self

    def refused(self) -> None:
        """Five connects of the program to its broker, from 30 s on."""
        t_ns = T0 + 30 * S + np.arange(5) * 200 * MS
        its = {"t_ns": t_ns, "pid": APP_PID, "proc_start_ns": START, "peer": PEER}
        self.add("tcp_connect", 5, **its, result="failed", errno=111)
        self.add("tcp_reset", 5, **its, direction="received")

    def stalled_decision(
        self, at: float, seconds: float, children: bool = True, pid: int = APP_PID, rtt_us: float | None = 45
    ) -> None:
        """One decision that ended at ``at`` after waiting ``seconds`` for Redis."""
        end = T0 + int(at * S)
        self.add(
            "limiter_decision",
            t_ns=end,
            pid=pid,
            tid=pid,
            comm=b"python3",
            limiter_id=b"api",
            library=b"own",
            cost=1.0,
            result="allowed",
            duration_ns=int(seconds * S),
        )
        if children:
            self.add(
                "slow_syscall",
                t_ns=end - 20 * US,
                pid=pid,
                tid=pid,
                comm=b"python3",
                kind="waiting",
                peer=REDIS,
                syscall=b"recvfrom",
                fd_type=b"socket",
                duration_ns=int(seconds * S) - 50 * US,
                blocked_ns=int(seconds * S) - 60 * US,
                run_queue_ns=10 * US,
                sock_id=77,
            )

    def step(self, at: float, size_ns: int, pid: int = 812, kind: str = "step", comm: bytes = b"chronyd") -> None:
        before = 1_700_000_000 * S
        self.add(
            "clock_change",
            at=at,
            pid=pid,
            comm=comm,
            kind=kind,
            via=b"clock_settime",
            size_ns=size_ns,
            err_ns=50,
            real_mono_before_ns=before,
            real_mono_after_ns=before + size_ns,
            ret=0,
        )

    def without(self, *tables: str) -> Host:
        self.made = [b for b in self.made if b.table not in tables]
        return self


def run(
    host: Host,
    until: float,
    config: CorrelatorConfig | None = None,
    every_ms: int = 1000,
    shuffle: int | None = None,
    tables: Collection[str] = ("finding", "verdict", "evidence"),
    each: Callable[[Correlator], object] = lambda _: None,
) -> list[Batch]:
    """All findings (or what else the correlator makes) emitted while advancing to ``until`` seconds after T0; rows
    arrive before their watermark, in shuffled batches if asked. every_ms: how far the watermark moves at a time; the
    correlator judges whole seconds, and test_correlate_silence.py shows that shorter steps give the same findings.
    each: called after each advance.
    """
    correlator = Correlator(config or CorrelatorConfig())
    pieces: list[tuple[int, Batch]] = []
    for table, rows in host.made:
        slot = rows["t_ns"] // (every_ms * MS)
        pieces += [(int(s), Batch(table, rows[slot == s])) for s in np.unique(slot)]
    rng = np.random.default_rng(shuffle)
    order = rng.permutation(len(pieces)) if shuffle is not None else np.arange(len(pieces))
    due: dict[int, list[Batch]] = {}
    for i in order:
        s, batch = pieces[i]
        due.setdefault(s, []).append(
            Batch(batch.table, batch.rows[rng.permutation(len(batch.rows))]) if shuffle is not None else batch
        )
    out: list[Batch] = []
    for tick in range(T0 // (every_ms * MS), (T0 + int(until * S)) // (every_ms * MS) + 1):
        for batch in due.get(tick, []):
            correlator.feed(batch)
        out += [b for b in correlator.advance((tick + 1) * every_ms * MS - 1) if b.table in tables]
        each(correlator)
    return out


def latest(batches: list[Batch]) -> list[dict[str, Any]]:
    """The last state of each finding, by start, with its causes, what was ruled out and its evidence as `findings -o
    json` has them; keys and details of evidence are also members of it.
    """
    found: dict[bytes, np.void] = {}
    beside: dict[tuple[str, bytes], np.ndarray] = {}
    for table, rows in batches:
        for row in rows if table == "finding" else ():
            found[bytes(row["finding_id"])] = row
        if table in ("verdict", "evidence") and len(rows):
            beside[table, bytes(rows["finding_id"][0])] = rows
    whole = [
        joined(
            read(row), *([read(one) for one in beside.get((table, its_id), ())] for table in ("verdict", "evidence"))
        )
        for its_id, row in found.items()
    ]
    for one in whole:
        one["evidence"] = [{**e.get("details", {}), **e.get("keys", {}), **e} for e in one["evidence"]]
    return whole


def read(row: np.void) -> dict[str, Any]:
    """A row of a finding, or of what it rests on; unknown numbers are None."""
    table = next(t for t in TABLES.values() if t.dtype == row.dtype)
    out: dict[str, Any] = {}
    for column in table.columns:
        value = row[column.name]
        if column.kind == "enum":
            out[column.name] = column.word(int(value))
        elif isinstance(value, bytes):
            out[column.name] = json.loads(value or b"[]") if column.name == "sentence_parts" else value.decode()
        else:
            out[column.name] = None if value != value else value.item()
    return out


#: Seconds after T0 at which the scenarios below end. Each is named after the cause that it has.
UNTIL = 60


def around_stall(decision: Callable[[Host], None]) -> Host:
    """Healthy for 30 s, then one decision of 1.4 s, then healthy again."""
    host = Host().healthy(0, 30)
    decision(host)
    for part in (host.decisions, host.rtt, host.server, host.accept, host.web):
        part(31.4, UNTIL)
    host.queue(30, UNTIL)
    return host


def call(host: Host, **columns: object) -> None:
    pid = columns.setdefault("pid", APP_PID)
    its = {"t_ns": T0 + int(31.3 * S), "tid": pid, "comm": b"python3", "kind": "slow"}
    host.add("slow_syscall", **{**its, "duration_ns": int(1.25 * S), "run_queue_ns": 0, **columns})


def broker_slow() -> Host:
    return around_stall(lambda h: h.stalled_decision(31.4, 1.4))


def network_rtt() -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4)
        host.rtt(30, 31.4, us=1_300_000, every=0.5)

    return around_stall(stall)


def network_loss() -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4)
        host.add(
            "tcp_retransmit",
            3,
            t_ns=T0 + 30 * S + np.array([300, 600, 1200]) * MS,
            pid=APP_PID,
            peer=PEER,
            kind=0,
            count=1,
        )

    return around_stall(stall)


def broker_down() -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4)
        host.refused()

    return around_stall(stall)


def tls() -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        host.add("tls_handshake", at=31.39, pid=APP_PID, tid=APP_PID, peer=PEER, duration_ns=int(1.3 * S))

    return around_stall(stall)


def syscall() -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"fsync", fd_type=b"file")

    return around_stall(stall)


def cpu() -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"sched_yield", duration_ns=10 * MS, run_queue_ns=int(1.2 * S))

    return around_stall(stall)


def refusing(**columns: object) -> Host:
    host = Host()
    host.decisions(0, 30, limit_per_s=100.0, burst=10.0)
    host.decisions(30, UNTIL, **({"refused": 0.6, "limit_per_s": 100.0, "burst": 10.0} | columns))  # type: ignore[arg-type]
    return host


def config() -> Host:
    return refusing(limit_per_s=20.0)


def load() -> Host:
    return refusing(rate=200.0)


def clock_step() -> Host:
    host = refusing()
    host.step(29.5, -30 * S)
    return host


def lagging(consumers: int = 2, incoming: float = 100, out: float = 100, **more: object) -> Host:
    host = Host()
    host.queue(0, 30)
    grown = np.arange(UNTIL - 30)
    host.queue(30, UNTIL, lag=grown * 100, age=grown * 1.0, consumers=consumers, incoming=incoming, out=out, **more)
    return host


def consumer_slow() -> Host:
    return lagging(out=20)


def consumer_stopped() -> Host:
    return lagging(out=0)


def accept_overflow() -> Host:
    host = Host()
    host.accept(0, 30)
    host.accept(30, 40, queue=512, drops=12 + np.arange(10) * 7)
    host.accept(40, UNTIL, drops=75)
    return host


ALL = (
    broker_slow,
    network_rtt,
    network_loss,
    broker_down,
    tls,
    syscall,
    cpu,
    config,
    load,
    clock_step,
    consumer_slow,
    consumer_stopped,
    accept_overflow,
)
