"""Stops and terminations of processes: stopped, frozen, killed, exited, restarted. Pure; from rows of
``process_event``.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from agent.common.copies import only
from agent.correlate.episode import Culprit, Evidence, item
from agent.correlate.rows import known, of_codes
from agent.correlate.thresholds import SECOND
from agent.correlate.words import Words, aside, process, render, span, text, value
from agent.tables import TABLES

READS = {
    "process_event": (
        "kind",
        "signal",
        "exit_code",
        "sender_pid",
        "sender_comm",
        "cgroup_id",
        "uid",
        "parent_pid",
        "sender_is",
    )
}
_KIND = TABLES["process_event"].by_name["kind"]
TRACED = "traced"  # by a debugger: it may be stopped, until an unknown time
STOPS, RESUMES, ENDS = ("stopped", "frozen"), ("continued", "thawed"), ("killed", "exited", "oom_killed")
_WHOLE = of_codes(_KIND.names.index(kind) for kind in ("frozen", "thawed"))
ENDLESS_NS = 1 << 62  # end of a stop that lasts
_CHAIN_NS = 30 * SECOND
_MOST = 256  # events examined for one process
_ORDERLY = {int(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
_ASKED = (0, *(128 + number for number in _ORDERLY))  # exit codes after an orderly request to end


@dataclass(frozen=True)
class Termination:
    """kind: one of ``STOPS`` or ``ENDS``. from_ns, to_ns: of a stop; a termination has one time. signal, exit_code,
    sender_pid: None if unknown.

    uid: of its user. lives: for a termination, how many processes of that program and user terminated alike, one after
    the other, from ``first_ns`` (``first_pid``) to ``last_ns``; replaced: whether another process took its place.
    joint_scope, joint_pids: if the same act hit several processes (agent/correlate/joint_terminations.py), the scope of
    the first of them, and all their pids. needed: whether others depend on it, or it is only a worker. abrupt:
    terminated by a signal from outside (agent/correlate/external_ends.py).
    """

    kind: str
    pid: int
    tick: int
    comm: str
    cgroup: int
    from_ns: int
    to_ns: int
    signal: int | None = None
    exit_code: int | None = None
    sender_pid: int | None = None
    sender_comm: str = ""
    uid: int | None = None
    lives: int = 1
    first_pid: int = 0
    first_ns: int = 0
    last_ns: int = 0
    replaced: bool = False
    joint_scope: str = ""
    joint_pids: tuple[int, ...] = ()
    parent: int | None = None
    needed: bool = True
    abrupt: bool = False

    @property
    def stop(self) -> bool:
        return self.kind in (*STOPS, TRACED)

    @property
    def older(self) -> bool:
        """A stop that is older than the agent: it has lasted longer than is known."""
        return self.kind in STOPS and self.signal is None and not self.sender_comm

    @property
    def orderly(self) -> bool:
        """It ended on request, or with status 0."""
        if self.kind == "killed":
            return self.signal in _ORDERLY
        return self.kind == "exited" and (self.exit_code in _ASKED or self.signal in _ORDERLY)

    @property
    def who(self) -> str:
        return process(self.comm, self.pid)

    @property
    def sender(self) -> str:
        """The sender of the signal; empty if unknown, or the process itself."""
        return aside(self.sender_comm, self.sender_pid) if self.sender_pid not in (None, self.pid) else ""

    @property
    def scope(self) -> str:
        """Common to all episodes that it explains; for lives one after the other, that of the first."""
        if self.kind == "frozen":
            return f"frozen {self.cgroup}"
        if self.stop:
            return self.joint_scope or f"{self.pid}/{self.tick}"
        return f"end of {self.first_pid or self.pid}"

    @property
    def blamed(self) -> tuple[int, ...]:
        return self.joint_pids or (self.pid,)

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.pid, self.comm)

    @property
    def detail(self) -> str:
        if self.kind in ("frozen", "oom_killed", TRACED):
            return "oom" if self.kind == "oom_killed" else self.kind
        if self.older:
            return "before"
        return _name(self.signal) if self.kind != "exited" else "exit"

    def lasted(self, until_ns: int) -> int:
        return min(self.to_ns, until_ns) - self.from_ns

    def words(self, until_ns: int) -> Words:
        """What happened to which process, and how."""
        others = len(self.joint_pids) - 1
        did = (
            render(
                "was stopped for {least}{took}",
                least="at least " if self.older else "",
                took=span(self.lasted(until_ns)),
            )
            if self.stop
            else "was killed"
            if self.kind in ("killed", "oom_killed")
            else "exited"
        )
        with_it = render(", with {n} more of its program", n=value(others)) if others > 0 else ""
        return render("{who} {did} ({how}){others}", who=self.who, did=did, how=self.how, others=with_it)

    @property
    def how(self) -> Words:
        """The signal and its sender, the exit status, or another reason."""
        if self.kind == "frozen":
            before = " since before tickscope ran" if self.older else ""
            return f"cgroup frozen by {self.sender}" if self.sender else f"cgroup frozen{before}"
        if self.kind == "oom_killed":
            return "out of memory"
        if self.kind == TRACED:
            return f"traced by {self.sender}" if self.sender else "traced"
        sent = f"{_name(self.signal)}{f' from {self.sender}' if self.sender else ''}" if self.signal is not None else ""
        if self.older:
            return "since before tickscope ran"
        if self.kind != "exited":
            return sent
        return render("status {code}{sent}", code=value(self.exit_code), sent=f" after {sent}" if sent else "")

    @property
    def restart(self) -> float:
        """How well "restart" describes it."""
        if self.stop or (self.lives < 2 and not self.replaced):
            return 0.0
        return 1.0 if self.lives > 2 or (self.orderly and self.replaced) else 0.7

    def restarted(self) -> Words:
        how = self.words(self.from_ns)
        if self.lives < 2:
            return render("{how}, and another process took its place", how=how)
        return render(
            "{comm} ended {n} within {took}, a new process each time; the last: {how}",
            comm=self.comm,
            n=value(self.lives, "time"),
            took=span(self.last_ns - self.first_ns),
            how=how,
        )

    def evidence(self, until_ns: int) -> tuple[Evidence, ...]:
        what = "stopped" if self.stop else self.kind.replace("_", " ")
        return (
            item(
                "process_event",
                what,
                float(self.lasted(until_ns)) if self.stop else None,
                "ns" if self.stop else "",
                column="" if self.stop else "signal",
                how="" if self.stop else self.detail,
                object=self.who,
                sender_pid=self.sender_pid,
                sender=self.sender_comm,
                t_ns=self.from_ns,
                end_ns=min(self.to_ns, until_ns),
                keys={"cgroup_id": self.cgroup} if self.kind == "frozen" else {"pid": self.pid},
            ),
        )


def _name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _int(number: object) -> int | None:
    whole = int(number)  # type: ignore[call-overload]
    return whole if whole > -(2**62) else None


def kind_of(row: np.void) -> str:
    """Empty if unknown."""
    return _KIND.word(int(row["kind"]))


def of_row(row: np.void, pid: int, tick: int, comm: str, cgroup: int) -> Termination:
    """The event of a row for that process; a stop lasts."""
    kind, t_ns = kind_of(row), int(row["t_ns"])
    return Termination(
        kind,
        pid,
        tick,
        comm,
        cgroup,
        t_ns,
        ENDLESS_NS if kind in (*STOPS, TRACED) else t_ns,
        _int(row["signal"]),
        _int(row["exit_code"]),
        _int(row["sender_pid"]),
        text(row["sender_comm"]),
        _int(row["uid"]),
    )


def of_namespace(events: np.ndarray) -> np.ndarray:
    """Without events of processes outside of the agent's PID namespace, which have no pid here. Events of a whole
    cgroup have none either, but are kept.
    """
    return only(events, known(events["pid"]) | _WHOLE[events["kind"]])


def terminations(events: np.ndarray, pids: Collection[int], cgroups: Collection[int] = ()) -> list[Termination]:
    """Of processes, from events in order. cgroups: the cgroups of the processes, for events of whole cgroups."""
    events = of_namespace(events)
    whole, mine = ~known(events["pid"]), np.isin(events["pid"], list(pids))
    before = events["cgroup_id"][mine & (events["kind"] == _KIND.code("frozen"))]
    mine |= whole & np.isin(events["cgroup_id"], [*cgroups, *before.tolist()])
    found: list[Termination] = []
    for row in events[mine][-_MOST:]:
        kind = kind_of(row)
        pid = _int(row["pid"])
        if kind in (*STOPS, TRACED):
            for who in pids if pid is None else (pid,):
                if kind == TRACED or not any(f.pid == who and f.kind == kind and f.to_ns == ENDLESS_NS for f in found):
                    found.append(
                        of_row(
                            row,
                            who,
                            int(row["proc_start_ns"]) // 10_000_000 if pid else -1,
                            text(row["comm"]),
                            _int(row["cgroup_id"]) or -1,
                        )
                    )
            continue
        if kind not in (*RESUMES, *ENDS):
            continue
        for n, f in enumerate(found):
            over = kind in ENDS or (f.kind != TRACED and (kind == "thawed") == (f.kind == "frozen"))
            its = pid == f.pid if pid is not None else row["cgroup_id"] == f.cgroup
            if f.to_ns == ENDLESS_NS and over and its:
                found[n] = replace(f, to_ns=int(row["t_ns"]))
        if kind in ENDS and pid is not None:
            end = of_row(
                row, pid, int(row["proc_start_ns"]) // 10_000_000, text(row["comm"]), _int(row["cgroup_id"]) or -1
            )
            found.append(chained(end, events))
    return found


def chained(end: Termination, events: np.ndarray) -> Termination:
    """Counts the processes of that program that terminated alike before it and after it, each before the next one had
    started.
    """
    alike = (events["comm"] == end.comm.encode()) & (events["kind"] == _KIND.code(end.kind))
    for name, of in (("signal", end.signal), ("exit_code", end.exit_code), ("uid", end.uid)):
        alike &= ~known(events[name]) if of is None else events[name] == of
    near = events[alike & (np.abs(events["t_ns"] - end.from_ns) <= _CHAIN_NS)]
    lives, begun, first_pid = 1, end.tick, end.pid
    first = last = end.from_ns
    for row in near[near["t_ns"] < end.from_ns][::-1][:_MOST]:
        if int(row["t_ns"]) // 10_000_000 <= begun:
            lives, begun, first = lives + 1, int(row["proc_start_ns"]) // 10_000_000, int(row["t_ns"])
            first_pid = int(row["pid"])
    for row in near[near["t_ns"] > end.from_ns][:_MOST]:
        if int(row["proc_start_ns"]) // 10_000_000 >= last // 10_000_000:
            lives, last = lives + 1, int(row["t_ns"])
    return replace(end, lives=lives, first_ns=first, last_ns=last, first_pid=first_pid)
