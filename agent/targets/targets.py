"""The executable files that the processes of this host run and map: what uprobes are attached to.

A process is scanned when it starts and several times shortly after, since the dynamic linker and dlopen map files
later. Afterwards it is scanned every 10 s, if its size has changed. Its executable is opened by the first scan, and
again only by the periodic scans, in case an exec was missed. The privileged helper opens the files and the ELF analyzer
reads them. This module decides which process is scanned when: one scan per user at a time, within the user's time
budget (agent/common/fairness.py).
"""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from agent.common.fairness import Budget, Places, UserQueues
from agent.common.pace import BEAT_NS, beat_after
from agent.contracts import Due, Readable
from agent.kernel.limits import (
    INSPECTION_MOST_S,
    INSPECTION_PART,
    LONGEST_S,
    ROOT_SCANS_AT_A_TIME,
    SCANS_AT_A_TIME,
    SCANS_WAITING,
)
from agent.kernel.steps import BlockedError, Done, Steps, pump_until, run
from agent.log import log_message
from agent.posix import background
from agent.targets.analyzer_pool import AnalyzerPool
from agent.targets.asked import HOST, ProbeRequest, owner_of
from agent.targets.attacher import Attacher
from agent.targets.files import Files, probe_descriptors
from agent.targets.images import Images
from agent.targets.mounts import MountWatch
from agent.targets.processes import Process, Processes, ProcessScan
from agent.targets.roots import Roots
from agent.targets.unprobed import UnprobedPrograms

if TYPE_CHECKING:
    import numpy as np

    from agent.batch import Batch
    from agent.kernel.kernel_source import KernelSource

#: Scans after the start of a program, ns. Those that are not urgent are made at beats, when the loop wakes anyway.
SCAN_DELAYS_NS = (0, 20_000_000, BEAT_NS, 1_000_000_000, 5_000_000_000)
FULL_SCAN_NS = 10_000_000_000
_BUDGET_S = 0.010
#: Duration of the start; what remains continues in the background.
_START_S = 20.0
_SOON_NS, _SILENT_NS = 10_000_000, 250_000_000
_NO_SIZE = b"0"


class Scheduled(NamedTuple):
    """A scan. number: of SCAN_DELAYS_NS, for a program that started at began_ns; the next one follows if the process
    still exists.
    """

    due_ns: int
    pid: int
    began_ns: int = 0
    number: int = len(SCAN_DELAYS_NS)

    def next(self) -> Scheduled | None:
        if self.number + 1 >= len(SCAN_DELAYS_NS):
            return None
        delay_ns = SCAN_DELAYS_NS[self.number + 1]
        due_ns = self.began_ns + delay_ns
        return Scheduled(
            beat_after(due_ns) if delay_ns >= BEAT_NS else due_ns, self.pid, self.began_ns, self.number + 1
        )


class Targets(Readable, Due):
    """Offers each file once to all requests. Implements ``agent.contracts.Source``; produces no rows.

    kernel: its exec_events report new programs. Make the requests with ``library`` and ``exe``, then call ``start``.
    ``failures`` counts files that could not be opened, by errno name.
    """

    name = "targets"

    def __init__(
        self,
        helper: Attacher,
        kernel: KernelSource,
        linker_cache: str = "/etc/ld.so.cache",
        unprobed_programs: UnprobedPrograms | None = None,
        analyzers: AnalyzerPool | None = None,
    ) -> None:
        self.failures: Counter[str] = Counter()
        self.roots = Roots()
        self.unprobed_programs = unprobed_programs or UnprobedPrograms()
        self.analyzers = analyzers or AnalyzerPool()
        self.shares = probe_descriptors()
        digesting, multi = helper.digesting, kernel.loaded.uprobe_multi
        self.files = Files(self.analyzers, digesting, self.shares, self.unprobed_programs, self.failures, multi)
        self._helper, self._linker_cache = helper, linker_cache
        self._due: list[Scheduled] = []
        self._due_ns = 0
        self._scan: deque[int] = deque()
        self._waiting: UserQueues[tuple[int, bool]] = UserQueues(SCANS_WAITING)
        self._scans: list[ProcessScan] = []  # of all kinds
        self._scanned_pids: set[int] = set()
        self._running = Places(SCANS_AT_A_TIME, a_user=1)
        self._budget = Budget(INSPECTION_PART, INSPECTION_MOST_S, root=False)
        #: Of new roots of containers. They have places of their own, since the first programs there soon make TLS
        #: handshakes.
        self._root_scans = Places(ROOT_SCANS_AT_A_TIME, a_user=1)
        self._hurried = self._scanning_images = False
        self._dropped = 0
        self._later: list[Done] = []
        self._full_ns = 0
        self.images = Images(MountWatch(), helper.opening, self.files, self._pause)
        self._processes = Processes(helper, self.files, self.images, self.roots, self.unprobed_programs, self._pause)
        self._stalled: tuple[ProcessScan, float] | None = None
        kernel.subscribe("exec_events", self.on_exec)

    def library(self, pattern: bytes, request: ProbeRequest) -> None:
        """Requests shared libraries with a file name that matches ``pattern`` as a whole."""
        self._processes.library(pattern, request)

    def exe(self, request: ProbeRequest) -> None:
        """Requests every executable file that runs."""
        self.files.executables.append(request)

    def mapped(self, where: Callable[[int], bool], request: ProbeRequest) -> None:
        """Requests every shared library of the processes for which ``where(pid)`` is true."""
        self.files.mapped.append((where, request))

    def again(self, pid: int) -> None:
        """Scans a process soon, if it has mapped anything since the last scan."""
        if len(self._due) < SCANS_WAITING:
            heapq.heappush(self._due, Scheduled(time.clock_gettime_ns(time.CLOCK_BOOTTIME), pid))
            self._arm()

    def start(self) -> None:
        """Offers the libraries that the dynamic linker would find, so that new processes are probed from their start,
        then the files of the running processes.
        """
        done: list[object] = []
        self.images.read_mounts()
        run(self.files.offer_known(self._linker_cache), lambda *end: done.append(end))
        self._full_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + FULL_SCAN_NS
        self._scan.extend(self._pids())
        pump_until(
            lambda: bool(done) and not (self._scan or self._scans or self._later),
            [self._helper, self.analyzers, self],
            _START_S,
        )
        self.analyzers.rest()
        self._arm()

    def fds(self) -> list[int]:
        return [
            *self.files.writes.fds(),
            *self._helper.fds(),
            *self.analyzers.fds(),
            *self.images.fds(),
        ]

    @property
    def due_ns(self) -> int:
        return self._due_ns

    def on_exec(self, started: np.ndarray) -> None:
        """Takes started programs (``agent.probes.exec.STARTED``)."""
        self.roots.on_exec(started)
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for pid in set(started["pid"].tolist()):
            self._processes.forget(pid)
            if len(self._due) < SCANS_WAITING:
                heapq.heappush(self._due, Scheduled(now, pid, now, 0))
            else:
                self._dropped += 1
        self._arm()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Works on what is due, for at most about 10 ms."""
        if not self._full_ns:
            self.start()
        elif self._full_ns <= now_ns:
            self._full_ns = now_ns + FULL_SCAN_NS
            pids = self._pids()
            # Without the helper nobody could find out that a file is used, or attach its probes again.
            if self._helper.alive and not self._helper.silent:
                self._processes.release_unused()
            if not self._scan:
                self._scan.extend(pids)
        elif self._quiet() and now_ns < self._due_ns:
            self._pump()
            return ()
        end = time.monotonic() + _BUDGET_S
        self._pump()
        self._begin(now_ns, end)
        while self._helper.busy and self._scans and time.monotonic() < end and not self._helper.silent:
            pump_until(lambda: not self._helper.busy, [self._helper], end - time.monotonic())  # usually returns at once
            self._begin(now_ns, end)
        self._arm()
        return ()

    def pump(self) -> None:
        """For ``start``: like ``drain``, without a limit on time."""
        self._pump()
        self._begin(time.clock_gettime_ns(time.CLOCK_BOOTTIME), float("inf"))

    def close(self) -> None:
        self.images.close()
        self.files.close()
        self.analyzers.close()

    def analysis(self) -> dict[str, int]:
        """For ``status``: running ELF analyzers, questions that exceeded a limit, scans that were dropped because the
        queue was full, and the descriptors that probes take and may take.
        """
        return {
            "processes": len(self.analyzers.pids),
            "overruns": self.analyzers.overruns.total(),
            "scans_dropped": self._dropped,
            "probe_descriptors": self.shares.used,
            "probe_descriptors_limit": self.shares.limit,
        }

    def _quiet(self) -> bool:
        under_way = self._scan or self._scans or self._waiting or self._later or self.roots.waiting()
        return not under_way and self.images.due_s() > time.monotonic()

    def _pump(self) -> None:
        self.files.let_go_of_written()
        self._helper.pump()
        self._settle()
        self.analyzers.pump()
        later, self._later = self._later, []
        for done in later:
            done(None, None)

    def _pause(self, done: Done) -> None:
        """A wait for the next round of the loop."""
        self._later.append(done)

    def _arm(self) -> None:
        """Sets ``due_ns`` for the next work. Work that could not begin waits for an answer, which wakes the loop."""
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        soon = 1 if self._scan or self._later else self._full_ns
        free = [uid for uid in self._waiting.users() if not self._running.refusal(uid)]
        due = min(
            [
                soon,
                *([self._due[0].due_ns] if self._due else []),
                *(self._budget.ready_ns(uid, now_ns) for uid in free),
            ]
        )
        rest_s = self.images.due_s() - time.monotonic()
        if not self._scanning_images and rest_s < _START_S:
            due = min(due, now_ns + int(rest_s * 1e9))
        self._due_ns = max(due, now_ns + (_SILENT_NS if self._helper.silent else _SOON_NS if self._scans else 0))

    def _pids(self) -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        self._processes.keep(set(pids))
        return pids

    def _begin(self, now_ns: int, end: float) -> None:
        """Starts scans: images and new roots first, then those of users in the queue."""
        if not self._scanning_images and self.images.due_s() <= time.monotonic() and not self._helper.silent:
            scan, self._scanning_images = ProcessScan(HOST), True
            self._scans.append(scan)
            run(self._metered(scan, self.images.work()), lambda _, error: self._images_done(scan, error))
        if not self._helper.alive:
            self._scan.clear()
            self._due.clear()
            self._waiting.clear()
            return
        for pid in self.roots.waiting():
            if not self._root_scans.refusal(0) and time.monotonic() < end and not self._helper.silent:
                self._scan_root(pid, now_ns)
        for uid in self._waiting.users():
            if self._free(uid, now_ns) and not self._helper.silent:
                self._begin_scan(*self._waiting.take(uid), now_ns)
        while not self._running.refusal(0) and time.monotonic() < end and not self._helper.silent:
            if self._due and self._due[0].due_ns <= now_ns:
                scheduled = heapq.heappop(self._due)
                if self._begin_scan(scheduled.pid, False, now_ns) and (following := scheduled.next()):
                    heapq.heappush(self._due, following)
            elif self._scan:
                self._begin_scan(self._scan.popleft(), True, now_ns)
            else:
                return

    def _free(self, uid: int, now_ns: int) -> bool:
        """Whether a scan of this user's may begin."""
        return not self._running.refusal(uid) and self._budget.left(uid, now_ns) > 0

    def _begin_scan(self, pid: int, full: bool, now_ns: int) -> bool:
        """Scans a process unless its size is unchanged. Returns whether it exists and has a size, which kernel threads
        and zombies have not.
        """
        try:
            with open(f"/proc/{pid}/statm", "rb", buffering=0) as statm:
                size = statm.read(64).split()[0]
            known = self._processes.of(pid)
            if size == known.size:
                return size != _NO_SIZE
            owner = owner_of(pid)
        except (OSError, IndexError, ValueError) as error:
            self._processes.forget(pid)
            return isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, ProcessLookupError))
        if not self._free(owner.uid, now_ns) or pid in self._scanned_pids:
            self._dropped += not self._waiting.put(owner.uid, (pid, full))
            return True
        self._running.take(owner.uid)
        self._scanned_pids.add(pid)
        scan = ProcessScan(owner)
        self._scans.append(scan)
        work = self._metered(scan, self._processes.scan_process(scan, known, size, full))
        run(work, lambda _, error: self._scanned(scan, known, error))
        return True

    def _scanned(self, scan: ProcessScan, known: Process, error: Exception | None) -> None:
        self._running.give_back(scan.owner.uid)
        self._scanned_pids.discard(scan.owner.pid)
        self._processes.scanned(scan, known, error)
        self._done(scan, error)

    def _scan_root(self, pid: int, now_ns: int) -> None:
        """A separate scan, since an earlier scan of the same pid, from before its exec, may still wait for an ELF
        analyzer. While its user has no time left, the root stays unknown.
        """
        try:
            owner = owner_of(pid)
        except (OSError, IndexError, ValueError):
            self.roots.forget(self.roots.take(pid))
            return
        if self._budget.left(owner.uid, now_ns) <= 0:
            self.roots.forget(self.roots.take(pid))
        elif not self._root_scans.refusal(owner.uid) and (root := self.roots.take(pid)) is not None:
            scan = ProcessScan(owner)
            self._scans.append(scan)
            self._root_scans.take(owner.uid)
            # a race against the first program there, which has started
            self._hurried = background.hurry() or self._hurried
            work = self._metered(scan, self._processes.offer_root(scan, root))
            run(work, lambda _, error: self._root_done(scan, error))

    def _root_done(self, scan: ProcessScan, error: Exception | None) -> None:
        self._root_scans.give_back(scan.owner.uid)
        if self._hurried and not self._root_scans.used:
            self._hurried = False
            background.give_way()
        self._done(scan, error)

    def _images_done(self, scan: ProcessScan, error: Exception | None) -> None:
        self._scanning_images = False
        self._done(scan, error)

    def _done(self, scan: ProcessScan, error: Exception | None) -> None:
        """Ends a scan of any kind."""
        self._scans.remove(scan)
        if error is not None:
            self.files.count(error)
            if not isinstance(error, OSError):
                log_message(f"tickscope: cannot scan process {scan.owner.pid}: {type(error).__name__}: {error}")
        self._charge(scan, scan.spent_s)

    def _charge(self, scan: ProcessScan, spent_s: float) -> None:
        self._budget.spend(scan.owner.uid, min(spent_s, LONGEST_S), time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def _metered(self, scan: ProcessScan, steps: Steps[None]) -> Steps[None]:
        """Runs a scan and adds up the time that it takes of this process, the helper and the ELF analyzer, without the
        time in queues.
        """
        value, error = None, None
        while True:
            begun = time.monotonic()
            try:
                wait = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration:
                return
            finally:
                scan.spent_s += time.monotonic() - begun
            value, error = None, None
            try:
                value = yield wait
            except Exception as failure:  # noqa: BLE001 - thrown into the scan
                error = failure
                if isinstance(failure, BlockedError):  # the user that blocked it is charged
                    self._helper.took_s = 0.0
                elif isinstance(failure, TimeoutError):
                    self._stalled = scan, time.monotonic() - self._helper.took_s
            scan.spent_s += self._helper.took_s + self.analyzers.took_s
            self._helper.took_s = self.analyzers.took_s = 0.0

    def _settle(self) -> None:
        """The user that stalled the helper is charged for the whole time, once the helper answers again."""
        if self._stalled is not None and not self._helper.silent:
            (scan, since_s), self._stalled = self._stalled, None
            self._charge(scan, time.monotonic() - since_s)
