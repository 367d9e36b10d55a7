"""The live summary: what the last seconds brought, redrawn once a second on a terminal. Reads the sinks' side; keeps
little.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from agent import log
from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.alive import gone
from agent.common.duration import span
from agent.common.printable import printable
from agent.common.sentence import pieces, text_of
from agent.queues.status import severity
from agent.service.screen import Part, cut, fitted, joined, row, size
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.service.loop import Loop
    from agent.service.status import Status

WINDOW_S = 10
#: Limiters that are considered for a screen, which has room for fewer.
_LIMITERS = 256
_SHOWN_S = 60  # how long a message of the agent stays on the screen
_KEPT = (
    "tcp_rtt",
    "tcp_connect",
    "tls_handshake",
    "syscall_latency",
    "slow_syscall",
    "limiter_decision",
    "queue_lag",
    "socket_queue",
)


def percentile(hist: np.ndarray, q: float) -> float:
    """The q-quantile (0 to 1) of log2 counts, shape (64,): geometric position within its bucket; NaN where empty."""
    total = hist.sum()
    if not total:
        return float("nan")
    cumulative = np.cumsum(hist)
    bucket = int(np.searchsorted(cumulative, q * total, side="left"))
    before = cumulative[bucket] - hist[bucket]
    return float(2.0 ** (bucket + (q * total - before) / hist[bucket]))


def _changed(row: np.void) -> str:
    """A row of clock_change in words."""
    kind = TABLES["clock_change"].by_name["kind"].names[row["kind"]]
    if row["ret"] != NULL_I64 and row["ret"] < 0:
        kind += " refused by the kernel"
    elif kind == "frequency" and row["freq_after_ppb"] != NULL_I64:
        kind += f" set to {row['freq_after_ppb'] / 1e3:+.3f} ppm"
    elif row["size_ns"] not in (NULL_I64, 0):
        kind += f" of {span(row['size_ns'])}"
    who = printable(row["comm"]) or "unknown process"
    return f"{kind}, {who} pid {row['pid']}" if row["pid"] != NULL_I64 else f"{kind}, {who}"


def _weight(finding: np.void) -> tuple[bool, bool]:
    """What matters more is greater: open alarms, alarms, notices that go on, others."""
    table = TABLES["finding"]
    return finding["severity"] != table.code("severity", "notice"), finding["state"] == table.code("state", "open")


_LABEL = "\0"  # before a line that begins with a label of nine columns


def _label(text: str) -> str:
    return f"{_LABEL}{text:9}"


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that are broken between words, and inside one only where it is longer than a line."""
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(text, max(width, 8), subsequent_indent=indent + "  ", break_on_hyphens=False)


class Live:
    """A sink that remembers the last ``WINDOW_S`` seconds of some tables, and draws."""

    name = "live"

    def __init__(self, loop: Loop, status: Status) -> None:
        self._loop, self._status = loop, status
        self._recent: dict[str, deque[tuple[float, np.ndarray]]] = {t: deque() for t in _KEPT}
        self._findings: dict[bytes, np.void] = {}
        self._changes: list[np.void] = []
        self._before: dict[str, int] = {}
        self._rates: list[str] = []
        self._messages: deque[tuple[float, str]] = deque(maxlen=2)
        self._colour = not os.environ.get("NO_COLOR")
        loop.sinks.append(self)
        if os.isatty(sys.stderr.fileno()):
            log.show(lambda text: self._messages.append((time.monotonic(), text)))

    def offer(self, batch: Batch) -> None:
        if batch.table in self._recent:
            self._recent[batch.table].append((time.monotonic(), batch.rows))
        elif batch.table == "clock_change":
            self._changes = [*self._changes, *batch.rows][-2:]
        elif batch.table == "finding":
            for found in batch.rows:
                self._findings[found["finding_id"]] = found
            while len(self._findings) > 5:
                del self._findings[min(self._findings, key=lambda one: _weight(self._findings[one]))]

    def losses(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        log.show(None)
        self._write("\x1b[?25h\x1b[?7h")

    def _write(self, text: str) -> None:
        """Nothing where the terminal is stopped (Ctrl-S) or gone: the agent waits for neither."""
        with contextlib.suppress(OSError):
            if select.select((), (sys.stdout,), (), 0)[1]:
                os.write(
                    sys.stdout.fileno(), text.encode(sys.stdout.encoding, sys.stdout.errors or "strict")
                )  # no buffer keeps it

    def show(self, _: int) -> None:
        """Once a second: the rates of that second, and the screen."""
        self._rates = list(self._count())
        self.draw()

    def draw(self, _: int = 0) -> None:
        """The screen, as large as it is now. No line goes on in the next one (?7l), should it become smaller
        meanwhile.
        """
        now = size()
        lines = [cut(line, now.columns) for line in self.lines(now.columns, now.lines - 1)]
        self._write("\x1b[?25l\x1b[?7l\x1b[H" + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")

    def _rows(self, table: str) -> np.ndarray:
        kept = self._recent[table]
        while kept and kept[0][0] < time.monotonic() - WINDOW_S:
            kept.popleft()
        return np.concatenate([TABLES[table].empty(0), *(rows for _, rows in kept)])

    def lines(self, width: int, height: int) -> list[str]:
        """What is shown on a screen of that size. A label stands at the first line that has it, whichever that is."""
        out, last = [], ""
        for line in fitted(list(self._parts(width)), height, width):
            label, text = (line[1:10], line[10:]) if line.startswith(_LABEL) else ("", line)
            shown = label if label != last else " " * len(label)
            out.append((f"\x1b[1m{shown}\x1b[0m" if self._colour and shown.strip() else shown) + text)
            last = label
        return out

    def _parts(self, width: int) -> Iterator[Part]:
        """Everything, in the order in which it stands on the screen."""
        room = width - 9
        attached, other = self._status.counts()
        words = [f"{attached} families attached", f"{other} degraded", f"last {WINDOW_S} s", "Ctrl-C stops"]
        yield Part(0, [_label("tickscope") + joined([" " + words[0], *words[1:]], room)])
        for probe in self._status.probes():
            if probe["state"] not in ("attached", "off"):
                yield Part(
                    2,
                    _wrapped(f"  {probe['probe']}: {probe['state']}: {printable(probe['reason'] or '')}", width),
                    "probe",
                )
        for shown_s, text in self._messages:
            if time.monotonic() - shown_s < _SHOWN_S:
                yield Part(
                    2, [line for one in text.splitlines() for line in _wrapped(f"  {printable(one)}", width)], "message"
                )
        rates = textwrap.wrap(
            "  ".join(rate.replace(" ", "\0") for rate in self._rates) or "none yet", room
        )  # a name and its number stay together
        yield Part(8, [""])
        yield Part(7, [_label("rows/s") + line.replace("\0", " ") for line in rates])
        yield Part(8, [""])
        yield from self._network(room)
        yield from self._calls(room)
        yield from self._clock(room)
        yield from self._limiters(room)
        yield from self._queues(room)
        yield Part(8, [""])
        lost = self._status.lost()
        yield Part(
            2 if lost else 7,
            [_label("lost") + line for line in _wrapped(lost or "nothing", room)],
            "list of losses" if lost else "",
        )
        yield Part(1, [_label("findings") + ("" if self._findings else "none")])
        for i, found in enumerate(sorted(self._findings.values(), key=_weight)[::-1]):
            state = TABLES["finding"].by_name["state"].names[found["state"]]
            sentence = printable(
                text_of(pieces(bytes(found["sentence_parts"]), bytes(found["sentence"])), self._status.wall)
            )
            yield Part(
                1 if i == 0 else 3 if all(_weight(found)) else 7, _wrapped(f"  {state}: {sentence}", width), "finding"
            )

    def _count(self) -> Iterator[str]:
        for table, total in sorted(self._loop.totals.items()):
            rate = total - self._before.get(table, 0)
            self._before[table] = total
            if rate:
                yield f"{table} {rate}"

    def _network(self, room: int) -> Iterator[Part]:
        rtt, tls = self._rows("tcp_rtt"), self._rows("tls_handshake")
        hist = rtt["hist"].sum(axis=0) if len(rtt) else np.zeros(64)
        spread = (
            [f"p{int(q * 100)} {span(percentile(hist, q) * 1e3)}" for q in (0.5, 0.99)] if len(rtt) else ["none seen"]
        )
        connects = self._rows("tcp_connect")
        yield Part(
            6,
            [
                _label("RTT")
                + joined([*spread, f"{len(np.unique(rtt['sock_id']))} connections", f"{len(connects)} connects"], room)
            ],
        )
        taken = tls["duration_ns"].astype(float)
        spread = [f"p{q} {span(float(np.percentile(taken, q)))}" for q in (50, 99)] if len(taken) else []
        failed = int((tls["result"] != 0).sum())
        yield Part(6, [_label("TLS") + joined([f"{len(tls)} handshakes", *spread, f"{failed} failed"], room)])

    def _calls(self, room: int) -> Iterator[Part]:
        rows = self._rows("syscall_latency")
        parts = []
        for basis in range(3):
            chosen = rows[rows["basis"] == basis]
            if len(chosen):
                hist = chosen["hist"].sum(axis=0)
                name = TABLES["syscall_latency"].by_name["basis"].names[basis]
                parts.append(
                    f"{name} {chosen['count'].sum()}, p50 {span(percentile(hist, 0.5))}, p99"
                    f" {span(percentile(hist, 0.99))}"
                )
        yield Part(6, [_label("syscalls") + joined(parts or ["none seen"], room)])
        slow = self._rows("slow_syscall")
        for one in slow[np.argsort(slow["duration_ns"])[::-1][:3]]:
            words = [
                f"slow: {printable(one['comm'])} pid {one['pid']}:",
                f"{printable(one['syscall'])} {span(one['duration_ns'])}",
                *([f"on {printable(one['fd_type'])}"] if one["fd_type"] else []),
            ]
            yield Part(7, [_label("") + joined(words, room)], "slow call")

    def _clock(self, room: int) -> Iterator[Part]:
        state = self._status.clock()
        drift, error = state.get("drift_ppb"), state.get("maxerror_us")
        parts = [
            "synchronised" if state.get("synchronised") else "not synchronised",
            f"off by at most {span(error * 1e3)}" if error is not None else "",
            f"drift {drift / 1e3:+.3f} ppm" if drift is not None else "drift not known yet",
        ]
        yield Part(4, [_label("clock") + joined([*filter(None, parts)], room)])
        for change in self._changes[-2:]:
            yield Part(4, [_label("") + line for line in _wrapped(_changed(change), room)], "clock change")

    def _limiters(self, room: int) -> Iterator[Part]:
        rows = self._rows("limiter_decision")
        if not len(rows):
            yield Part(5, [_label("limiters") + "no decisions seen"])
            return
        names = TABLES["limiter_decision"].by_name["result"].names
        for limiter, pid in np.unique(rows[["limiter_id", "pid"]])[:_LIMITERS].tolist():
            mine = rows[(rows["limiter_id"] == limiter) & (rows["pid"] == pid)]
            start_ns = int(mine["proc_start_ns"][-1])
            if pid != NULL_I64 and gone(pid, None if start_ns == NULL_I64 else start_ns):
                continue
            results = [(names[code], n) for code, n in zip(*np.unique(mine["result"], return_counts=True), strict=True)]
            counts = [(4 if name == "allowed" else 5, f"{name} {n}") for name, n in results]
            timed = mine["duration_ns"][mine["duration_ns"] != NULL_I64].astype(float)
            p99 = [(3, f"p99 {span(float(np.percentile(timed, 99)))}")] if len(timed) else []
            who = (1, f"{printable(mine['comm'][-1])} {mine['pid'][-1]}")
            troubled = any(name != "allowed" for name, _ in results)
            yield Part(
                4 if troubled else 5,
                [_label("limiters") + row(printable(limiter), [who, *counts, *p99], room)],
                "limiter",
            )

    def _queues(self, room: int) -> Iterator[Part]:
        rows = self._rows("queue_lag")
        names = ("system", "cluster", "destination", "consumer_group", "partition")
        queues: dict[Any, list[np.void]] = {}
        for key, one in {tuple(one[name] for name in names): one for one in rows}.items():
            queues.setdefault(key[:-1], []).append(one)
        for partitions in queues.values():
            worst = max(partitions, key=lambda one: severity(one["status"].decode(errors="replace")))
            status = printable(worst["status"])
            lags = [int(one["lag_messages"]) for one in partitions if one["lag_messages"] != NULL_I64]
            ages = [age for one in partitions if not math.isnan(age := one["oldest_undelivered_s"])]
            lag = f"lag {sum(lags)}" if lags else "lag ?"
            old = [(2, f"oldest {max(ages):.1f} s")] if ages else []
            name = f"{printable(worst['destination'])}/{printable(worst['consumer_group'])}"
            important = 5 if severity(status) > severity("draining") else 1
            yield Part(4, [_label("queues") + row(name, [(4, lag), *old, (important, status)], room)], "queue")
        sockets = self._rows("socket_queue")
        accept = sockets[sockets["kind"] == 0]
        if len(accept):
            fullest = f"fullest queue {accept['queue'].max()}"
            yield Part(7, [_label("accept") + joined([f"{len(np.unique(accept['sport']))} listeners", fullest], room)])
