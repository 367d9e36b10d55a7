"""Threads that owe an answer: they read a request, and slept when a look began. Until when, and who woke them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agent.investigate.asleep import Asleep, parse
from agent.investigate.look import Counted
from agent.investigate.naming import Naming
from agent.kernel.steps import run


class Sleeper(NamedTuple):
    """One thread; state, nr and function as of ``Asleep``. ns: for how long it slept on. by_pid, by_tid, by_comm: who ran where it was woken; 0 where it slept on."""

    pid: int
    tid: int
    state: int
    nr: int
    function: str
    ns: int = 0
    by_pid: int = 0
    by_tid: int = 0
    by_comm: bytes = b""


class Owing:
    """Of one look."""

    def __init__(self) -> None:
        self._began: list[tuple[Sleeper, int]] = []

    def ask(self, naming: Naming, pid: int, tid: int, since_ns: int) -> None:
        """What that thread does now."""

        def answered(text: bytes | None, _error: Exception | None) -> None:
            if (one := sleeper(pid, tid, text or b"")) is not None:
                self._began.append((one, since_ns))

        if tid > 0:
            run(naming.threads(pid), answered)

    def told(self, counted: Counted, until_ns: int, others: Sequence[Asleep] = ()) -> list[Asleep | Sleeper]:
        """What became of them, after what is told of other sleepers."""
        out: list[Asleep | Sleeper] = [*others]
        if "offcpu_woken" not in counted.maps:
            return out
        tids, values = counted.maps["offcpu_woken"]
        woken = dict(zip(tids["tid"].tolist(), values, strict=True))
        ran = {*counted.maps["offcpu_gone"][0]["tid"].tolist()}
        for one, since_ns in self._began:
            if (it := woken.get(one.tid)) is not None:
                ns = max(0, int(it["t_ns"]) - since_ns)
                out.append(one._replace(ns=ns, by_pid=int(it["by_pid"]), by_tid=int(it["by_tid"]), by_comm=bytes(it["by_comm"])))  # fmt: skip
            elif one.tid not in ran:
                out.append(one._replace(ns=until_ns - since_ns))
        return out


def sleeper(pid: int, tid: int, text: bytes) -> Sleeper | None:
    """A thread of the helper's lines; None where it does not sleep."""
    mine = [line for line in text.split(b"\n") if line.partition(b" ")[0] == b"%d" % tid]
    return next((Sleeper(pid, tid, one.state, one.nr, one.function) for one in parse(pid, b"\n".join(mine), set())), None)  # fmt: skip
