"""The investigator, a source of the agent's loop: looks closer at processes while something is wrong with them, for
seconds, within a budget.

It asks the correlator what is wrong now (``Correlator.troubles``), has ``decide`` say what to look at and for how long,
attaches (``look``), and when that is over makes rows of what was counted, once the functions on the stacks have names
(``naming``). One look at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.contracts import Due, Finishing, Stating
from agent.investigate import rows
from agent.investigate.decide import LEAST_NS, LookedAt, ProfileBudget, looked_at
from agent.investigate.look import MOST_PIDS, CloserLook, Counted
from agent.investigate.naming import Naming, StackNames
from agent.investigate.owing import Owing
from agent.investigate.stacks import kernel_text, lock_text, user_text
from agent.kernel.steps import run
from agent.resources import process
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.correlate.troubles import Trouble
    from agent.kernel.helper_client import Helper
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource

#: Between two looks at what is wrong; from the detaching to the reading, since a program may still run; what is said of
#: a look's finding may come so late.
EACH_NS, SETTLE_NS, LATE_NS = 200_000_000, 20_000_000, 30_000_000_000
_TABLE = TABLES["investigation"]
_TICK_NS = 10_000_000
#: What a look's case is at.
_LOOKING, _SETTLING, _NAMING = range(3)


@dataclass
class _Subject:
    """A process that is looked at. name: of its row; since_ns: when it was begun with."""

    trouble: Trouble
    process: LookedAt
    uid: int
    name: str
    since_ns: int
    comm: str = ""
    found: int = 0


class _Case:
    """One look, and the processes that it is about: the first is one with which something is wrong. wanted: the
    families.
    """

    def __init__(self, look: CloserLook, wanted: list[str]) -> None:
        self.look, self.wanted, self.subjects = look, wanted, list[_Subject]()
        self.reasons, self.state, self.ended_ns, self.owing = list[str](), "running", 0, Owing()

    def add(self, trouble: Trouble, process_: LookedAt, uid: int, now_ns: int) -> _Subject:
        comm = trouble.comm if trouble.pids[0][0] == process_.pid else ""
        one = _Subject(trouble, process_, uid, f"{self.look.begun_ns:x}.{len(self.subjects)}", now_ns, comm)
        self.subjects.append(one)
        return one

    def row(self, one: _Subject, t_ns: int) -> Batch:
        return make(
            "investigation",
            1,
            t_ns=t_ns,
            investigation=one.name.encode(),
            pid=one.process.pid,
            proc_start_ns=one.process.start_tick * _TICK_NS,
            comm=one.comm.encode()[:16],
            uid=one.uid,
            symptom=one.trouble.symptom.encode(),
            finding_id=one.trouble.finding_id.encode(),
            state=_TABLE.code("state", self.state),
            looked=" ".join(self.look.looked).encode(),
            begun_ns=one.since_ns,
            interval_ns=(self.ended_ns or t_ns) - one.since_ns,
            found=one.found if self.state == "done" else NULL_I64,
            reason="; ".join([*(self.look.reasons if self.state != "running" else []), *self.reasons]).encode()[:160],
        )


class Investigator(Due, Finishing, Stating):
    """troubles: what is wrong now, and with whom. families: those of the probes that are ``closer``."""

    name = "investigation"

    def __init__(
        self,
        kernel: KernelSource,
        helper: Helper,
        families: Mapping[str, Family],
        naming: Naming,
        troubles: Callable[[], list[Trouble]],
    ) -> None:
        self._kernel, self._helper, self._families = kernel, helper, families
        self._naming, self._troubles = naming, troubles
        self.on = True
        self._budget = ProfileBudget()
        self._case: _Case | None = None
        self._phase, self._next_ns = _LOOKING, 0
        self._counted: Counted | None = None
        self._answer: tuple[StackNames | None, Exception | None] | None = None
        self._done: list[Batch] = []
        self._unnamed: list[tuple[_Case, _Subject]] = []
        self._looks = 0

    @property
    def due_ns(self) -> int:
        """When something is to be detached, or read."""
        if self._case is None or self._phase == _NAMING:
            return 0
        return self._case.look.due_ns if self._phase == _LOOKING else self._case.ended_ns + SETTLE_NS

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        try:
            if self._case is not None:
                self._go_on(self._case, now_ns)
            if self.on and now_ns >= self._next_ns and (self._case is None or self._phase == _LOOKING):
                self._next_ns = now_ns + EACH_NS
                self._consider(now_ns)
        except BaseException:  # whatever it was: nothing stays attached
            self.close()
            self._case = None
            raise
        done, self._done = self._done, []
        return done

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """What a look has counted so far, by addresses."""
        if (case := self._case) is not None:
            case.reasons.append("the agent ended")
            if self._phase == _LOOKING:
                self._ended(case, now_ns)
                wait(SETTLE_NS / 1e9)
            self._tell(case, self._counted or case.look.counted(), StackNames())
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        if self._case is not None:
            self._case.look.end(0)

    def state(self) -> dict[str, Any]:
        case = self._case
        running = (
            None
            if case is None
            else {
                "symptom": case.subjects[0].trouble.symptom,
                "pids": [one.process.pid for one in case.subjects],
                "looked": case.look.looked,
            }
        )
        return {
            "on": self.on,
            "running": running,
            "looks": self._looks,
            "spent_s": round(self._budget.spent_ns / 1e9, 3),
            "refused": dict(self._budget.refused),
        }

    def _consider(self, now_ns: int) -> None:
        """Begins a look where one is worth it and may be had, or has more processes join the one that goes on."""
        troubles = self._troubles()
        self._name_late(troubles, now_ns)
        for trouble in troubles:
            wanted = [name for name in looked_at(trouble.symptom) if name in self._families]
            if wanted and self._helper.alive and not self._helper.silent:
                self._look_at(trouble, wanted, now_ns)

    def _look_at(self, trouble: Trouble, wanted: list[str], now_ns: int) -> None:
        """At who suffers, and who holds it up where that is known, as far as each may be looked at."""
        for i, (pid, start_tick) in enumerate(trouble.pids):
            case = self._case
            if case is not None and any(one.process.pid == pid for one in case.subjects):
                continue
            if start_tick is not None and self._budget.rests(
                LookedAt(pid, start_tick), now_ns
            ):  # before anything is read
                if not i:
                    return
                continue
            now, uid = process.stat(pid), process.uid(pid)
            if now is None or uid is None or now.state in "ZXT" or start_tick not in (None, now.start_tick):
                return
            one = LookedAt(pid, now.start_tick)
            ns = self._budget.grant(trouble.episode, one, uid, now_ns)
            if case is not None:
                ns = (
                    min(ns, case.look.until_ns - now_ns)
                    if wanted == case.wanted and len(case.subjects) < MOST_PIDS
                    else 0
                )
            if ns < LEAST_NS:
                if not i:
                    return
                continue
            if case is None:
                case = self._begin(pid, wanted, ns, now_ns)
            else:
                case.look.join(pid, len(case.subjects))
            self._budget.spend(trouble.episode, one, uid, ns, now_ns, begins=not case.subjects)
            self._done.append(case.row(case.add(trouble, one, uid, now_ns), now_ns))
            if not i:
                case.owing.ask(self._naming, pid, trouble.tid, now_ns)

    def _begin(self, pid: int, wanted: list[str], length_ns: int, now_ns: int) -> _Case:
        look = CloserLook(self._kernel, self._helper, self._families, wanted, [pid], now_ns, length_ns)
        self._looks += 1
        case = _Case(look, wanted)
        if look.hopeless:
            look.end(now_ns)
            case.state = "failed"
        else:
            self._case, self._phase = case, _LOOKING
        return case

    def _go_on(self, case: _Case, now_ns: int) -> None:
        if self._phase == _LOOKING:
            gone = not any(
                process.is_it(process.stat(p.pid), p.start_tick * _TICK_NS)
                for p in (one.process for one in case.subjects)
            )
            if gone or not self.on:
                case.reasons.append("the process ended" if gone else "turned off")
            if gone or not self.on or case.look.step(now_ns):
                self._ended(case, now_ns)
        elif self._phase == _SETTLING and now_ns >= case.ended_ns + SETTLE_NS:
            self._phase, self._answer = _NAMING, None
            self._counted = case.look.counted()
            run(self._naming.asked(*self._unknown(case, self._counted)), self._answered)
        if self._phase == _NAMING and self._answer is not None:
            named, error = self._answer
            case.reasons += [f"{type(error).__name__}: {error}"] if error else named.reasons if named else []
            assert self._counted is not None
            self._tell(case, self._counted, named or StackNames())

    def _ended(self, case: _Case, now_ns: int) -> None:
        case.look.end(now_ns)
        case.ended_ns, self._phase = now_ns, _SETTLING

    def _answered(self, named: StackNames | None, error: Exception | None) -> None:
        """Called by whoever had the last answer: what is made of it is made in ``drain``."""
        self._answer = named, error

    @staticmethod
    def _unknown(case: _Case, counted: Counted) -> tuple[list[int], dict[int, list[int]], dict[int, set[int]]]:
        """Addresses of the kernel and of each process that need names, and the threads that were seen to switch."""
        kernel: set[int] = set()
        user: dict[int, set[int]] = {}
        switched: dict[int, set[int]] = {}
        off = [k for k in ("offcpu_sums", "contention_sums") if k in counted.maps]
        for name in off:
            keys = counted.maps[name][0]
            kernel.update(
                chain.from_iterable(counted.stacks.get(n, ()) for n in np.unique(keys["kernel_stack"]).tolist())
            )
            kernel.update(keys["lock"].tolist() if name == "contention_sums" else ())
        if "offcpu_sums" in counted.maps:
            tids, gone = counted.maps["offcpu_gone"]
            keys = np.concatenate([counted.maps["offcpu_sums"][0], gone["key"]])
            kernel.update(
                chain.from_iterable(counted.stacks.get(n, ()) for n in np.unique(keys["kernel_stack"]).tolist())
            )
            for pid, number in {(int(k["pid"]), int(k["user_stack"])) for k in keys}:
                user.setdefault(pid, set()).update(counted.stacks.get(number, ()))
            switched = {one.process.pid: set(tids["tid"].tolist()) for one in case.subjects}
        if "oncpu_sums" in counted.maps:
            keys, values = counted.maps["oncpu_sums"]
            for key in keys[np.argsort(-values["sum_ns"].astype(np.int64), kind="stable")[: rows.NAMED]]:
                user.setdefault(int(key["pid"]), set()).update(counted.stacks.get(int(key["user_stack"]), ()))
        return sorted(kernel), {pid: sorted(its) for pid, its in user.items() if its}, switched

    def _tell(self, case: _Case, counted: Counted, named: StackNames) -> None:
        t_ns = case.ended_ns

        def user(number: int, pid: int) -> str:
            return user_text(counted.stacks.get(number, ()), named.places.get(pid, {}), named.user.get(pid, {}))

        def kernel(number: int) -> str:
            return kernel_text(counted.stacks.get(number, ()), named.kernel)

        def lock(address: int, number: int) -> str:
            return lock_text(address, counted.stacks.get(number, ()), named.kernel)

        looks = {one.process.pid: (one.name, one.since_ns - case.look.begun_ns) for one in case.subjects}
        try:
            who = {
                int(v["proc"]["pid"]): v["proc"]
                for held in counted.maps.values()
                if "proc" in (held[1].dtype.names or ())
                for v in held[1]
            }
            for one in case.subjects:
                who.setdefault(one.process.pid, self._identity(one))
                one.comm = who[one.process.pid]["comm"].decode("utf-8", "replace") or one.comm
            asleep = case.owing.told(counted, t_ns, named.asleep)
            for batch in rows.all_of(counted, t_ns, who, looks, asleep, rows.FrameNames(kernel, user, lock)):
                if len(batch.rows):
                    self._done.append(rows.marked(batch, counted, looks, t_ns))
                    for one in case.subjects:
                        one.found += int(np.count_nonzero(batch.rows["investigation"] == one.name.encode()))
        finally:
            case.state, self._case, self._counted = "done", None, None
            for one in case.subjects:
                self._done.append(case.row(one, t_ns))
                self._unnamed += [] if one.trouble.finding_id else [(case, one)]

    def _identity(self, one: _Subject) -> np.void:
        """Of a process of which nothing was counted."""
        proc = np.zeros(1, self._kernel.loaded.wire.dtype("proc"))
        proc["pid"], proc["proc_start_ns"], proc["cgroup_id"] = (
            one.process.pid,
            one.process.start_tick * _TICK_NS,
            np.uint64(1 << 63),
        )
        proc["comm"] = one.comm.encode()[:16]
        out: np.void = proc[0]
        return out

    def _name_late(self, troubles: list[Trouble], now_ns: int) -> None:
        """Findings of which a look's symptom became one after it."""
        found = {t.episode: t for t in troubles if t.finding_id}
        for case, one in [
            (c, one) for c, one in self._unnamed if one.trouble.episode in found or now_ns > c.ended_ns + LATE_NS
        ]:
            self._unnamed.remove((case, one))
            if one.trouble.episode in found:
                one.trouble = found[one.trouble.episode]
                self._done.append(case.row(one, now_ns))
