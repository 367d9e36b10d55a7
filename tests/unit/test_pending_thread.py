"""A thread that owes an answer, where it is not known what it did: nothing is reported of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.common.clocks import boot_ns
from agent.investigate.asleep import Asleep
from agent.investigate.pending_thread import ROOM, PendingThread, PendingThreads
from agent.investigate.profile import WIRES, Counted
from agent.kernel.steps import Steps
from agent.kernel.wire_structs import Wire

S, MS, TID = 1_000_000_000, 1_000_000, 17
BPF = Path(__file__).parents[2] / "bpf"


class Reported:
    """What /proc tells when the helper gets round to it."""

    def threads(self, pid: int, tid: int) -> Steps[bytes]:
        return b"%d S 202 futex_wait_queue" % pid
        yield


def reported(since_ns: int, woken: dict[int, int], until_ns: int) -> list[Asleep | PendingThread]:
    """woken: when, of threads that slept before the look."""
    wire = Wire.read(BPF / "events.h", BPF / "tickscope.h", BPF / "profile.h", BPF / "offcpu.bpf.c")
    key, value = (wire.dtype(name) for name in WIRES["offcpu_woken"])
    keys, values = np.zeros(len(woken), key), np.zeros(len(woken), value)
    keys["tid"], values["count"], values["wakes"]["t_ns"][:, 0] = [*woken], 1, [*woken.values()]
    gone = tuple(np.zeros(0, wire.dtype(name)) for name in WIRES["offcpu_gone"])
    pending = PendingThreads()
    pending.begin(Reported(), TID, TID, since_ns)  # type: ignore[arg-type]
    return pending.rows_of(Counted({"offcpu_woken": (keys, values), "offcpu_gone": gone}), until_ns)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("ago_ns", "woken_ns", "lasts_ns", "ns"),
    [
        (0, None, 2 * S, [2 * S]),
        (0, S, 2 * S, [S]),
        (S, None, 3 * S, [3 * S]),  # late, but it was not woken meanwhile
        (S, 1500 * MS, 3 * S, [1500 * MS]),
        (S, 400 * MS, 3 * S, []),  # it has been woken before it was seen asleep
        (3 * S, None, 2 * S, []),  # the look was over by then
    ],
)
def test_an_answer_that_comes_late(ago_ns: int, woken_ns: int | None, lasts_ns: int, ns: list[int]) -> None:
    since_ns = boot_ns() - ago_ns
    found = reported(since_ns, {} if woken_ns is None else {TID: since_ns + woken_ns}, since_ns + lasts_ns)
    assert [one.ns for one in found if isinstance(one, PendingThread)] == ns


def test_where_there_was_no_room_to_note_who_was_woken() -> None:
    since_ns = boot_ns()
    others = {TID + n: since_ns + S for n in range(1, ROOM + 1)}
    assert reported(since_ns, others, since_ns + 2 * S) == []
