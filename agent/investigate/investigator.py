"""The investigator, a source of the agent's loop: profiles processes for seconds while something is wrong with them,
within a budget.

It gets what is wrong now from the correlator (``Correlator.active_episodes``). ``decide`` chooses the families and the
length, and ``profile`` attaches them. After that ``naming`` names the functions on the stacks, and the counts become
rows. There is one profile at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common import process_stat
from agent.contracts import Due, Finishing, Pending, Stating
from agent.investigate import rows
from agent.investigate.decide import LEAST_NS, ProfileBudget, ProfiledProcess, families_of
from agent.investigate.naming import Naming, StackNames
from agent.investigate.pending_thread import PendingThreads
from agent.investigate.profile import MOST_PIDS, Counted, Profile
from agent.investigate.stacks import kernel_text, lock_text, user_text
from agent.kernel.steps import run
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.correlate.in_progress import ActiveEpisode
    from agent.kernel.helper_client import Helper
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.loaded_families import Family

#: Between detaching and reading, since a program may still run; after the end of a profile, how long its finding is
#: waited for.
SETTLE_NS, LATE_NS = 20_000_000, 30_000_000_000
_TABLE = TABLES["investigation"]
_TICK_NS = 10_000_000
#: Phases of a case.
_PROFILING, _SETTLING, _NAMING = range(3)


@dataclass
class _Subject:
    """A process that is profiled. name: of its row; since_ns: when its profile began."""

    active_episode: ActiveEpisode
    process: ProfiledProcess
    uid: int
    name: str
    since_ns: int
    comm: str = ""
    found: int = 0


class _Case:
    """One profile and its processes. The first one is the subject of an active episode. wanted: the families."""

    def __init__(self, profile: Profile, wanted: list[str]) -> None:
        self.profile, self.wanted, self.subjects = profile, wanted, list[_Subject]()
        self.reasons, self.state, self.ended_ns, self.pending = list[str](), "running", 0, PendingThreads()

    def add(self, active_episode: ActiveEpisode, process: ProfiledProcess, uid: int, now_ns: int) -> _Subject:
        comm = active_episode.comm if active_episode.pids[0][0] == process.pid else ""
        one = _Subject(active_episode, process, uid, f"{self.profile.begun_ns:x}.{len(self.subjects)}", now_ns, comm)
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
            symptom=one.active_episode.symptom.encode(),
            finding_id=one.active_episode.finding_id.encode(),
            state=_TABLE.code("state", self.state),
            families=" ".join(self.profile.attached_families).encode(),
            begun_ns=one.since_ns,
            interval_ns=(self.ended_ns or t_ns) - one.since_ns,
            found=one.found if self.state == "done" else NULL_I64,
            reason="; ".join([*(self.profile.reasons if self.state != "running" else []), *self.reasons]).encode()[
                :160
            ],
        )


class Investigator(Due, Finishing, Pending, Stating):
    """active_episodes: what is wrong now, with the processes. families: those of the probes that are ``profiling``."""

    name = "investigation"

    def __init__(
        self,
        kernel: KernelSource,
        helper: Helper,
        families: Mapping[str, Family],
        naming: Naming,
        active_episodes: Callable[[], list[ActiveEpisode]],
    ) -> None:
        self._kernel, self._helper, self._families = kernel, helper, families
        self._naming, self._active_episodes = naming, active_episodes
        self.on = True
        self._budget = ProfileBudget()
        self._case: _Case | None = None
        self._phase = _PROFILING
        self._counted: Counted | None = None
        self._answer: tuple[StackNames | None, Exception | None] | None = None
        self._done: list[Batch] = []
        self._unnamed: list[tuple[_Case, _Subject]] = []
        self._profiles = 0

    @property
    def due_ns(self) -> int:
        """When something must be detached or read; 0 if there is nothing."""
        if self._case is None or self._phase == _NAMING:
            return 0
        return self._case.profile.due_ns if self._phase == _PROFILING else self._case.ended_ns + SETTLE_NS

    def pending(self, now_ns: int) -> bool:
        """While a profile goes on, or rows wait."""
        return self._case is not None or bool(self._done)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        with self._nothing_stays():
            if self._case is not None:
                self._advance(self._case, now_ns)
        done, self._done = self._done, []
        return done

    def judged(self, now_ns: int) -> None:
        """Called when the correlator has judged a second: begins a profile where one is worthwhile and granted, or adds
        processes to the running one.
        """
        if self.on and (self._case is None or self._phase == _PROFILING):
            with self._nothing_stays():
                self._consider(now_ns)

    @contextmanager
    def _nothing_stays(self) -> Iterator[None]:
        """After any error nothing stays attached."""
        try:
            yield
        except BaseException:
            self.close()
            self._case = None
            raise

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """The counts of a running profile, with addresses in place of names."""
        if (case := self._case) is not None:
            case.reasons.append("the agent ended")
            if self._phase == _PROFILING:
                self._ended(case, now_ns)
                wait(SETTLE_NS / 1e9)
            self._finish(case, self._counted or case.profile.counted(), StackNames())
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        if self._case is not None:
            self._case.profile.end(0)

    def state(self) -> dict[str, Any]:
        case = self._case
        running = (
            None
            if case is None
            else {
                "symptom": case.subjects[0].active_episode.symptom,
                "pids": [one.process.pid for one in case.subjects],
                "families": case.profile.attached_families,
            }
        )
        return {
            "on": self.on,
            "running": running,
            "profiles": self._profiles,
            "spent_s": round(self._budget.spent_ns / 1e9, 3),
            "refused": dict(self._budget.refused),
        }

    def _consider(self, now_ns: int) -> None:
        active_episodes = self._active_episodes()
        self._assign_findings(active_episodes, now_ns)
        for active_episode in active_episodes:
            wanted = [name for name in families_of(active_episode.symptom) if name in self._families]
            if wanted and self._helper.alive and not self._helper.silent:
                self._profile(active_episode, wanted, now_ns)

    def _profile(self, active_episode: ActiveEpisode, wanted: list[str], now_ns: int) -> None:
        """Profiles the processes of an episode, the affected one first, as far as each may be profiled."""
        for i, (pid, start_tick) in enumerate(active_episode.pids):
            case = self._case
            if case is not None and any(one.process.pid == pid for one in case.subjects):
                continue
            if start_tick is not None and self._budget.pausing(
                ProfiledProcess(pid, start_tick), now_ns
            ):  # checked before /proc is read
                if not i:
                    return
                continue
            now, uid = process_stat.stat(pid), process_stat.uid(pid)
            if now is None or uid is None or now.state in "ZXT" or start_tick not in (None, now.start_tick):
                return
            process = ProfiledProcess(pid, now.start_tick)
            ns = self._budget.grant(active_episode.episode, process, uid, now_ns)
            if case is not None:
                ns = (
                    min(ns, case.profile.until_ns - now_ns)
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
                case.profile.join(pid, len(case.subjects))
            self._budget.spend(active_episode.episode, process, uid, ns, now_ns, begins=not case.subjects)
            self._done.append(case.row(case.add(active_episode, process, uid, now_ns), now_ns))
            if not i:
                case.pending.begin(self._naming, pid, active_episode.tid, now_ns)

    def _begin(self, pid: int, wanted: list[str], length_ns: int, now_ns: int) -> _Case:
        profile = Profile(self._kernel, self._helper, self._families, wanted, [pid], now_ns, length_ns)
        self._profiles += 1
        case = _Case(profile, wanted)
        if profile.failed:
            profile.end(now_ns)
            case.state = "failed"
        else:
            self._case, self._phase = case, _PROFILING
        return case

    def _advance(self, case: _Case, now_ns: int) -> None:
        if self._phase == _PROFILING:
            gone = not any(
                process_stat.is_it(process_stat.stat(p.pid), p.start_tick * _TICK_NS)
                for p in (one.process for one in case.subjects)
            )
            if gone or not self.on:
                case.reasons.append("the process ended" if gone else "turned off")
            if gone or not self.on or case.profile.step(now_ns):
                self._ended(case, now_ns)
        elif self._phase == _SETTLING and now_ns >= case.ended_ns + SETTLE_NS:
            self._phase, self._answer = _NAMING, None
            self._counted = case.profile.counted()
            run(self._naming.names_of(*self._unknown(case, self._counted)), self._answered)
        if self._phase == _NAMING and self._answer is not None:
            named, error = self._answer
            case.reasons += [f"{type(error).__name__}: {error}"] if error else named.reasons if named else []
            assert self._counted is not None
            self._finish(case, self._counted, named or StackNames())

    def _ended(self, case: _Case, now_ns: int) -> None:
        case.profile.end(now_ns)
        case.ended_ns, self._phase = now_ns, _SETTLING

    def _answered(self, named: StackNames | None, error: Exception | None) -> None:
        """Called when the last answer has come; ``drain`` makes the rows."""
        self._answer = named, error

    @staticmethod
    def _unknown(case: _Case, counted: Counted) -> tuple[list[int], dict[int, list[int]], dict[int, set[int]]]:
        """Addresses of the kernel and of each process that need names, and the threads that were switched."""
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

    def _finish(self, case: _Case, counted: Counted, named: StackNames) -> None:
        t_ns = case.ended_ns

        def user(number: int, pid: int) -> str:
            return user_text(counted.stacks.get(number, ()), named.places.get(pid, {}), named.user.get(pid, {}))

        def kernel(number: int) -> str:
            return kernel_text(counted.stacks.get(number, ()), named.kernel)

        def lock(address: int, number: int) -> str:
            return lock_text(address, counted.stacks.get(number, ()), named.kernel)

        profiles = {one.process.pid: (one.name, one.since_ns - case.profile.begun_ns) for one in case.subjects}
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
            asleep = case.pending.rows_of(counted, t_ns, named.asleep)
            for batch in rows.all_of(counted, t_ns, who, profiles, asleep, rows.FrameNames(kernel, user, lock)):
                if len(batch.rows):
                    self._done.append(rows.marked(batch, counted, profiles, t_ns))
                    for one in case.subjects:
                        one.found += int(np.count_nonzero(batch.rows["investigation"] == one.name.encode()))
        finally:
            case.state, self._case, self._counted = "done", None, None
            for one in case.subjects:
                self._done.append(case.row(one, t_ns))
                self._unnamed += [] if one.active_episode.finding_id else [(case, one)]

    def _identity(self, one: _Subject) -> np.void:
        """For a process of which nothing was counted."""
        proc = np.zeros(1, self._kernel.loaded.wire.dtype("proc"))
        proc["pid"], proc["proc_start_ns"], proc["cgroup_id"] = (
            one.process.pid,
            one.process.start_tick * _TICK_NS,
            np.uint64(1 << 63),
        )
        proc["comm"] = one.comm.encode()[:16]
        out: np.void = proc[0]
        return out

    def _assign_findings(self, active_episodes: list[ActiveEpisode], now_ns: int) -> None:
        """Writes the rows of finished profiles again when their symptoms have become findings."""
        found = {t.episode: t for t in active_episodes if t.finding_id}
        for case, one in [
            (c, one) for c, one in self._unnamed if one.active_episode.episode in found or now_ns > c.ended_ns + LATE_NS
        ]:
            self._unnamed.remove((case, one))
            if one.active_episode.episode in found:
                one.active_episode = found[one.active_episode.episode]
                self._done.append(case.row(one, now_ns))
