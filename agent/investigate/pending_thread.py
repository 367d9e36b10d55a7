"""Threads with an unanswered request, which slept when a profile began: when they were woken, and by which thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agent.common.clocks import boot_ns
from agent.investigate.asleep import Asleep, parse
from agent.investigate.naming import Naming
from agent.investigate.profile import Counted
from agent.kernel.steps import run
from agent.probes.syscalls import names
from agent.tables import TABLES

_REQUESTED = frozenset(int(nr) for nr in np.flatnonzero(np.isin(names(), [b"nanosleep", b"clock_nanosleep"])))
_READY = TABLES["off_cpu"].code("state", "ready")
_AT_ONCE_NS = 20_000_000  # a thread that runs for longer works between two sleeps
_LATE_NS = 200_000_000  # a later answer may be about another sleep than that at the profile's start
#: Size of ``offcpu_woken`` in threads (bpf/offcpu.bpf.c).
ROOM = 1024


class PendingThread(NamedTuple):
    """One thread; state, nr and function as in ``Asleep``. ns: how long it slept until it was woken. by_pid, by_tid,
    by_comm: what ran where it was woken; 0 if it was not. of_ns: from when it was first seen asleep to the end of the
    profile.
    """

    pid: int
    tid: int
    state: int
    nr: int
    function: str
    ns: int = 0
    of_ns: int = 0
    by_pid: int = 0
    by_tid: int = 0
    by_comm: bytes = b""


class PendingThreads:
    """Of one profile."""

    def __init__(self) -> None:
        self._began: list[tuple[PendingThread, int, int]] = []

    def begin(self, naming: Naming, pid: int, tid: int, since_ns: int) -> None:
        """Records what this thread does now."""

        def answered(text: bytes | None, _error: Exception | None) -> None:
            if (one := sleeper(pid, tid, text or b"")) is not None:
                self._began.append((one, since_ns, boot_ns()))

        if tid > 0:
            run(naming.threads(pid, tid), answered)

    def rows_of(self, counted: Counted, until_ns: int, others: Sequence[Asleep] = ()) -> list[Asleep | PendingThread]:
        """The sleeps of these threads, after the rows of other sleepers. If a thread was woken and slept on at once,
        there is a row for each wake-up, with the sum up to then. All sleeps count for a thread in nanosleep: its
        program asks for them, maybe for each request.
        """
        out: list[Asleep | PendingThread] = [*others]
        if "offcpu_woken" not in counted.maps:
            return out
        woken, gone = (
            {int(key["tid"]): value for key, value in zip(*counted.maps[name], strict=True)}
            for name in ("offcpu_woken", "offcpu_gone")
        )
        for one, since_ns, seen_ns in self._began:
            its, slept_ns, at_ns = woken.get(one.tid), 0, since_ns
            late = seen_ns - since_ns > _LATE_NS and its is not None and its["wakes"]["t_ns"][0] < seen_ns
            if seen_ns > until_ns or late or (its is None and len(woken) >= ROOM):
                continue
            for piece in _pieces(one, its, gone.get(one.tid), since_ns, until_ns):
                if one.nr in _REQUESTED and piece.nr != one.nr:
                    continue
                if piece.nr != one.nr or (piece.from_ns - at_ns > _AT_ONCE_NS and one.nr not in _REQUESTED):
                    break
                slept_ns, at_ns = slept_ns + piece.to_ns - piece.from_ns, piece.to_ns
                out.append(
                    one._replace(
                        ns=slept_ns,
                        of_ns=until_ns - since_ns,
                        by_pid=piece.by_pid,
                        by_tid=piece.by_tid,
                        by_comm=piece.by_comm,
                    )
                )
        return out


class _Piece(NamedTuple):
    """One sleep, and the thread that ended it."""

    nr: int
    from_ns: int
    to_ns: int
    by_pid: int = 0
    by_tid: int = 0
    by_comm: bytes = b""


def _pieces(
    one: PendingThread, woken: np.void | None, gone: np.void | None, since_ns: int, until_ns: int
) -> Iterator[_Piece]:
    if woken is None:
        if gone is None:
            yield _Piece(one.nr, since_ns, until_ns)
        return
    for wake in woken["wakes"][: int(woken["count"])]:
        from_ns, to_ns = int(wake["from_ns"]) or since_ns, int(wake["t_ns"])
        yield _Piece(
            int(wake["nr"]) if wake["from_ns"] else one.nr,
            from_ns,
            max(from_ns, to_ns),
            int(wake["by_pid"]),
            int(wake["by_tid"]),
            bytes(wake["by_comm"]),
        )
    if gone is not None and woken["count"] < len(woken["wakes"]) and gone["key"]["state"] != _READY:
        yield _Piece(int(gone["key"]["nr"]), int(gone["off_ns"]), until_ns)


def sleeper(pid: int, tid: int, text: bytes) -> PendingThread | None:
    """The thread from the helper's lines; None if it does not sleep."""
    mine = [line for line in text.split(b"\n") if line.partition(b" ")[0] == b"%d" % tid]
    return next(
        (PendingThread(pid, tid, one.state, one.nr, one.function) for one in parse(pid, b"\n".join(mine), set())), None
    )
