"""The live summary: what the last seconds brought, redrawn once a second on a terminal. Reads the sinks' side; keeps little."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch
from agent.clock.instants import dated
from agent.columns import NULL_I64
from agent.errors import printable
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.loop import Loop
    from agent.status import Status

WINDOW_S = 10
_SHOWN = 4  # limiters, and queues; the screen has to hold the rest too
_KEPT = ("tcp_rtt", "tcp_connect", "tls_handshake", "syscall_latency", "slow_syscall", "limiter_decision", "queue_lag", "socket_queue")


def percentile(hist: np.ndarray, q: float) -> float:
    """The q-quantile (0 to 1) of log2 counts, shape (64,): geometric position within its bucket; NaN where empty."""
    total = hist.sum()
    if not total:
        return float("nan")
    cumulative = np.cumsum(hist)
    bucket = int(np.searchsorted(cumulative, q * total, side="left"))
    before = cumulative[bucket] - hist[bucket]
    return float(2.0 ** (bucket + (q * total - before) / hist[bucket]))


def duration(ns: float) -> str:
    """A time span for people."""
    if math.isnan(ns):
        return "-"
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.0f} ns"


def _changed(row: np.void) -> str:
    """A row of clock_change in words."""
    kind = TABLES["clock_change"].by_name["kind"].names[row["kind"]]
    if row["ret"] != NULL_I64 and row["ret"] < 0:
        kind += " refused by the kernel"
    elif kind == "frequency" and row["freq_after_ppb"] != NULL_I64:
        kind += f" set to {row['freq_after_ppb'] / 1e3:+.3f} ppm"
    elif row["size_ns"] not in (NULL_I64, 0):
        kind += f" of {duration(row['size_ns'])}"
    who = printable(row["comm"]) or "by whom was not seen"
    return f"{kind}, {who} pid {row['pid']}" if row["pid"] != NULL_I64 else f"{kind}, {who}"


def _weight(finding: np.void) -> tuple[bool, bool]:
    """What matters more is greater: open alarms, alarms, notices that go on, others."""
    table = TABLES["finding"]
    return finding["severity"] != table.code("severity", "notice"), finding["state"] == table.code("state", "open")


def _cut(line: str, width: int) -> str:
    """A line of at most that many characters on the screen; escape sequences take none."""
    parts, left = [], width
    for text, escape in re.findall(r"([^\x1b]*)(\x1b\[[0-9;]*m)?", line):
        parts += [text[:left], escape]
        left -= len(text[:left])
    return "".join(parts)


def _more(things: Sized, name: str) -> Iterable[str]:
    """That not all of them were shown."""
    if len(things) > _SHOWN:
        yield f"{'':8}and {len(things) - _SHOWN} more: tickscope {name}"


class Live:
    """A sink that remembers the last ``WINDOW_S`` seconds of some tables, and draws."""

    name = "live"

    def __init__(self, loop: Loop, status: Status) -> None:
        self._loop, self._status = loop, status
        self._recent: dict[str, deque[tuple[float, np.ndarray]]] = {t: deque() for t in _KEPT}
        self._findings: dict[bytes, np.void] = {}
        self._changes: list[np.void] = []
        self._before: dict[str, int] = {}
        self._colour = not os.environ.get("NO_COLOR")
        loop.sinks.append(self)

    def offer(self, batch: Batch) -> None:
        if batch.table in self._recent:
            self._recent[batch.table].append((time.monotonic(), batch.rows))
        elif batch.table == "clock_change":
            self._changes = [*self._changes, *batch.rows][-2:]
        elif batch.table == "finding":
            for row in batch.rows:
                self._findings[row["finding_id"]] = row
            while len(self._findings) > 5:
                del self._findings[min(self._findings, key=lambda one: _weight(self._findings[one]))]

    def losses(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._write("\x1b[?25h")

    def _write(self, text: str) -> None:
        """Nothing where the terminal is stopped (Ctrl-S) or gone: the agent waits for neither."""
        with contextlib.suppress(OSError):
            if select.select((), (sys.stdout,), (), 0)[1]:
                os.write(sys.stdout.fileno(), text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))  # no buffer keeps it

    def show(self, _: int) -> None:
        """Redraws the screen."""
        size = shutil.get_terminal_size((100, 40))
        lines = [_cut(line, size.columns) for line in self._lines()][: size.lines - 1]
        self._write("\x1b[?25l\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")

    def _rows(self, table: str) -> np.ndarray:
        kept = self._recent[table]
        while kept and kept[0][0] < time.monotonic() - WINDOW_S:
            kept.popleft()
        return np.concatenate([TABLES[table].empty(0), *(rows for _, rows in kept)])

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._colour else text

    def _lines(self) -> Iterable[str]:
        attached, other = self._status.counts()
        yield self._bold("tickscope") + f"  {attached} probe families attached, {other} not whole   last {WINDOW_S} s   Ctrl-C stops"
        for probe in self._status.probes():
            if probe["state"] != "attached":
                yield f"  {probe['probe']}: {probe['state']}: {probe['reason']}"
        yield ""
        width = max(shutil.get_terminal_size((100, 40)).columns - 9, 40)
        rates = textwrap.wrap("  ".join(rate.replace(" ", "\0") for rate in self._rates()) or "none yet", width)  # a name and its number stay together
        for i, line in enumerate(rates):
            yield (self._bold("rows/s  ") if i == 0 else " " * 8) + line.replace("\0", " ")
        yield ""
        yield from self._network()
        yield from self._calls()
        yield from self._clock()
        yield from self._limiters()
        yield from self._queues()
        yield ""
        yield self._bold("lost    ") + (self._status.lost() or "nothing")
        yield self._bold("findings") + ("" if self._findings else " none")
        for row in sorted(self._findings.values(), key=_weight)[::-1]:
            state = TABLES["finding"].by_name["state"].names[row["state"]]
            width = max(shutil.get_terminal_size((100, 40)).columns - 1, 40)
            said = dated(printable(row["sentence"]), self._status.wall)
            yield from textwrap.wrap(f"{state}: {said}", width, initial_indent="  ", subsequent_indent="    ")

    def _rates(self) -> Iterable[str]:
        for table, total in sorted(self._loop.totals.items()):
            rate = total - self._before.get(table, 0)
            self._before[table] = total
            if rate:
                yield f"{table} {rate}"

    def _network(self) -> Iterable[str]:
        rtt, tls = self._rows("tcp_rtt"), self._rows("tls_handshake")
        hist = rtt["hist"].sum(axis=0) if len(rtt) else np.zeros(64)
        spread = " ".join(f"p{int(q * 100)} {duration(percentile(hist, q) * 1e3)}" for q in (0.5, 0.99))
        connects = self._rows("tcp_connect")
        yield self._bold("RTT     ") + f"{spread}   {len(np.unique(rtt['sock_id']))} connections   {len(connects)} connects"
        taken = tls["duration_ns"].astype(float)
        shown = " ".join(f"p{q} {duration(float(np.percentile(taken, q)))}" for q in (50, 99)) if len(taken) else "none"
        failed = int((tls["result"] != 0).sum())
        yield self._bold("TLS     ") + f"{len(tls)} handshakes  {shown}   {failed} failed"

    def _calls(self) -> Iterable[str]:
        rows = self._rows("syscall_latency")
        parts = []
        for basis in range(3):
            chosen = rows[rows["basis"] == basis]
            if len(chosen):
                hist = chosen["hist"].sum(axis=0)
                name = TABLES["syscall_latency"].by_name["basis"].names[basis]
                parts.append(f"{name}: {chosen['count'].sum()}, p50 {duration(percentile(hist, 0.5))} p99 {duration(percentile(hist, 0.99))}")
        yield self._bold("syscalls") + "  " + "   ".join(parts)
        slow = self._rows("slow_syscall")
        for row in slow[np.argsort(slow["duration_ns"])[::-1][:3]]:
            what = f"{printable(row['syscall'])} on {printable(row['fd_type']) or '-'}"
            yield f"  slow: {printable(row['comm'])} pid {row['pid']}: {what} {duration(row['duration_ns'])}"

    def _clock(self) -> Iterable[str]:
        state = self._status.clock()
        drift, error = state.get("drift_ppb"), state.get("maxerror_us")
        parts = [
            "synchronised" if state.get("synchronised") else "not synchronised",
            f"off by at most {duration(error * 1e3)}, says the kernel" if error is not None else "",
            f"drift against RAW {drift / 1e3:+.3f} ppm" if drift is not None else "drift not known yet",
        ]
        yield self._bold("clock   ") + "   ".join(filter(None, parts))
        for row in self._changes[-2:]:
            yield f"  {_changed(row)}"

    def _limiters(self) -> Iterable[str]:
        rows = self._rows("limiter_decision")
        if not len(rows):
            yield self._bold("limiters") + "  no decisions seen"
            return
        names = TABLES["limiter_decision"].by_name["result"].names
        limiters = np.unique(rows["limiter_id"])
        for limiter in limiters[:_SHOWN]:
            mine = rows[rows["limiter_id"] == limiter]
            counts = " ".join(f"{names[code]} {n}" for code, n in zip(*np.unique(mine["result"], return_counts=True), strict=True))
            timed = mine["duration_ns"][mine["duration_ns"] != NULL_I64].astype(float)
            p99 = duration(float(np.percentile(timed, 99))) if len(timed) else "-"
            yield self._bold("limiter ") + f"{printable(limiter)} ({printable(mine['comm'][-1])} pid {mine['pid'][-1]}): {counts}  p99 {p99}"
        yield from _more(limiters, "limiters")

    def _queues(self) -> Iterable[str]:
        rows = self._rows("queue_lag")
        latest: dict[Any, np.void] = {(r["destination"], r["consumer_group"]): r for r in rows}
        for row in list(latest.values())[:_SHOWN]:
            lag = "?" if row["lag_messages"] == NULL_I64 else row["lag_messages"]
            age = row["oldest_undelivered_s"]
            old = f", oldest {age:.1f} s" if not math.isnan(age) else ""
            yield self._bold("queue   ") + f"{printable(row['destination'])}/{printable(row['consumer_group'])}: lag {lag}{old} {printable(row['status'])}"
        yield from _more(latest, "queues")
        sockets = self._rows("socket_queue")
        accept = sockets[sockets["kind"] == 0]
        if len(accept):
            yield self._bold("accept  ") + f"{len(np.unique(accept['sport']))} listeners, fullest queue {accept['queue'].max()}"
