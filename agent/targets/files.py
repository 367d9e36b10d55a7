"""Files that processes run and map. Each is analyzed once for all requests, within its owner's share, and released when
nobody uses it.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.binaries.contract import Analysis, Instance
from agent.common.fairness import NoPlaceError, Places
from agent.common.printable import printable
from agent.common.recent import Recent
from agent.kernel import detach
from agent.kernel.limits import FACTS_KEPT, MOST_DESCRIPTORS, PROBE_SHARE, TRIES
from agent.kernel.steps import BlockedError, Steps, Wait, at_once
from agent.log import log_message
from agent.targets.analyzer_pool import AnalysisFailed, AnalyzerPool
from agent.targets.asked import HOST, FileId, Owner, ProbeRequest, Stamp, Target
from agent.targets.unprobed import UnprobedPrograms
from agent.targets.writes import Writes


class DescriptorsUsedError(NoPlaceError):
    """A user's share of the descriptors for probes is used up."""

    remedy = "raise LimitNOFILE of tickscope (ulimit -n), of which half is for probes"


def raise_soft_limit() -> int:
    """Raises the soft limit of descriptors to the hard limit, at most MOST_DESCRIPTORS; returns the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def probe_descriptors() -> Places:
    """The descriptors that probes may take: half of this process's soft limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = soft if soft != resource.RLIM_INFINITY else MOST_DESCRIPTORS
    return Places(int(most * PROBE_SHARE), what="probe descriptors")


class _File:
    def __init__(self, stamp: Stamp, keep: bool) -> None:
        self.stamp, self.keep, self.unused, self.gone = stamp, keep, 0, False
        self.instances: list[Instance] = []
        self.written: list[int] = []
        self.taken: list[tuple[Owner, int]] = []
        #: By request: which were made and need no repetition; which were refused, with the owner and the descriptors
        #: that were missing (0: another resource was missing); failed attempts; what removes the report about it.
        self.requested: set[int] = set()
        self.refused: dict[int, tuple[Owner, int]] = {}
        self.tries: Counter[int] = Counter()
        self.reported: dict[int, Callable[[], object]] = {}


class Files:
    """digesting: of ``helper.digest``. multi: uprobes take one descriptor per program, not one per place."""

    def __init__(
        self,
        analyzers: AnalyzerPool,
        digesting: Callable[[list[int]], Wait],
        shares: Places,
        unprobed_programs: UnprobedPrograms,
        failures: Counter[str],
        multi: bool,
    ) -> None:
        self.libraries: list[tuple[bytes, ProbeRequest]] = []
        self.executables: list[ProbeRequest] = []
        #: (condition on the pid, request): requests for all libraries of the processes that meet the condition.
        self.mapped: list[tuple[Callable[[int], bool], ProbeRequest]] = []
        self._analyzers, self._digesting, self._shares, self._unprobed, self._failures, self._multi = (
            analyzers,
            digesting,
            shares,
            unprobed_programs,
            failures,
            multi,
        )
        self.writes = Writes()
        self._files: dict[FileId, _File] = {}
        self._facts = Recent[tuple[object, ...], Any](FACTS_KEPT)
        #: Whether a device is that of an overlay that root has mounted. On other devices a user could imitate the inode
        #: and ctime of somebody else's file.
        self.overlaid: Callable[[int], bool] = lambda device: False

    def matching(self, path: bytes) -> list[ProbeRequest]:
        name = path.rsplit(b"/", 1)[-1]
        return [request for pattern, request in self.libraries if re.fullmatch(pattern, name)]

    def known(self, file: FileId) -> bool:
        return file in self._files

    def wanting(self, file: FileId, owner: Owner | None = None) -> bool:
        """Whether to offer it again: it was written to, attaching failed, or it was refused for want of descriptors
        that this owner's share has now (None: the share of the refused owner).
        """
        known = self._files.get(file)
        return known is None or bool(known.tries.keys() - known.requested or self._allowed(known, owner))

    def _allowed(self, file: _File, owner: Owner | None) -> list[int]:
        """Refused requests that would now be accepted."""
        return [
            request
            for request, (owner_key, n) in file.refused.items()
            if not self._shares.refusal((owner or owner_key).uid, n)
        ]

    def count(self, error: Exception) -> None:
        """Counts an error that must not stop the scan: processes end, and files in containers may be unreadable."""
        number = error.errno if isinstance(error, OSError) else None
        self._failures[errno.errorcode.get(number or 0, type(error).__name__)] += 1

    def offer(
        self,
        owner: Owner,
        path: str,
        fd: int,
        others: list[int],
        requests: list[ProbeRequest],
        keep: bool = False,
        layer: bool = False,
    ) -> Steps[FileId]:
        """Has a file analyzed for all requests that have not had it yet. others: descriptors of its companions, in
        order; layer: it lies in a layer of an overlay.
        """
        st = os.fstat(fd)
        key = (
            FileId(0, st.st_ino, st.st_ctime_ns) if layer or self.overlaid(st.st_dev) else FileId(st.st_dev, st.st_ino)
        )
        stamp = Stamp(st.st_mtime_ns, st.st_ctime_ns, st.st_size)
        file = self._files.get(key)
        if file is not None and file.stamp != stamp:
            self._let_go(key)
            file = None
        if file is None:
            file = self._files[key] = _File(stamp, keep)
        for again in self._allowed(file, owner):
            del file.refused[again]
            file.requested.discard(again)
        for request in requests:
            if id(request) not in file.requested and request.wanted(path):
                file.requested.add(id(request))
                mine = [others.pop(0)] if request.companion and others else []
                yield from self._request(
                    request, file, Target(owner, path, fd, key, self._attached_to(id(request), file, owner)), mine
                )
        return key

    def _attached_to(self, request: int, file: _File, owner: Owner) -> Callable[[int, int], None]:
        def take(links: int, places: int) -> None:
            n = links if self._multi else max(links, places)
            if why := self._shares.refusal(owner.uid, n):
                file.refused[request] = owner, n
                raise DescriptorsUsedError(errno.EDQUOT, why)
            self._shares.take(owner.uid, n)
            file.taken.append((owner, n))

        return take

    def _request(self, request: ProbeRequest, file: _File, target: Target, others: list[int]) -> Steps[None]:
        """Anybody can put files here, so an error in one must not stop the scan."""
        number, taken = id(request), len(file.taken)
        instances, failed = list[Instance](), True
        watched = self.writes.watch(target.fd)  # before it is read
        file.written.append(watched)
        try:
            for plain in (yield from self._analyze(request, file.stamp, target, others)):
                if not file.gone and (one := (yield from request.found(target, Analysis.of(plain)))) is not None:
                    instances.append(one)
            failed = False
            file.tries.pop(number, None)
            self._forget(file, number)
        except AnalysisFailed as why:
            again = why.passing and self._again(file, number, why)
            self._report(
                request,
                file,
                target,
                f"could not be examined: {why}",
                "it is tried again" if again else "see docs/limits.md" if why.overrun else "",
            )
        except NoPlaceError as error:
            file.refused.setdefault(number, (target.owner, 0))
            self._report(request, file, target, str(error.strerror), error.remedy)
        except OSError as error:
            self.count(error)
            again = self._again(file, number, error)
            self._report(
                request,
                file,
                target,
                f"cannot attach: {error.strerror}",
                "it is tried again" if again else "see `tickscope doctor`",
            )
        except Exception as error:  # noqa: BLE001 - an error in one file must not stop the scan
            log_message(f"tickscope: cannot examine {printable(target.path)}: {type(error).__name__}: {error}")
        if failed:
            self._close(instances)
        if not instances:
            self._give_back(file, taken)
            self._unwatch(file, watched)
        file.instances += instances
        if file.gone:  # released meanwhile
            self._end(file)

    @staticmethod
    def _again(file: _File, request: int, error: Exception) -> bool:
        """After a failure: whether it is tried again. Attempts that another user blocked do not count."""
        file.tries[request] += not isinstance(error, BlockedError)
        if file.tries[request] < TRIES:
            file.requested.discard(request)
        return request not in file.requested

    def _analyze(self, request: ProbeRequest, stamp: Stamp, target: Target, others: list[int]) -> Steps[Any]:
        """The facts, from the cache where the same content was analyzed before."""
        beside = [(st.st_dev, st.st_ino, st.st_mtime_ns, st.st_size) for st in map(os.fstat, others)]
        key = (*request.question, target.file, stamp, *beside)
        if key not in self._facts:
            try:
                self._facts[key] = yield from self._fresh(request, target, others)
            except AnalysisFailed as why:
                if why.passing:
                    raise
                self._facts[key] = why
        facts = self._facts.get(key)
        if isinstance(facts, AnalysisFailed):
            raise AnalysisFailed(str(facts), facts.overrun)
        return facts

    def _fresh(self, request: ProbeRequest, target: Target, others: list[int]) -> Steps[Any]:
        """The facts from the analyzer, or from the cache if a copy was analyzed before. Containers hold copies of few
        libraries, and the first program of a container should not wait for the analyzer.
        """
        fds = [target.fd, *others]
        try:
            copies = (
                (*request.question, (yield self._digesting(fds)))
                if any(request is one for _, one in self.libraries)
                else None
            )
        except TimeoutError:
            raise
        except OSError:  # too large for a digest: each copy is analyzed
            copies = None
        if copies is not None and copies in self._facts:
            self._facts.move_to_end(copies)
            return self._facts[copies]
        facts = yield self._analyzers.analyze(request.analysis, fds, **request.arguments)
        if copies is not None:
            self._facts[copies] = facts
        return facts

    def _report(self, request: ProbeRequest, file: _File, target: Target, reason: str, remedy: str) -> None:
        self._forget(file, id(request))
        file.reported[id(request)] = self._unprobed.of(
            request.probe, target.path, target.owner, "unavailable", reason, remedy
        )

    def _forget(self, file: _File, request: int) -> None:
        """Removes the report about it, if there is one."""
        forget = file.reported.pop(request, None)
        if forget is not None:
            forget()

    def offer_known(self, linker_cache: str) -> Steps[None]:
        """Offers every requested path in the dynamic linker's cache."""
        try:
            cache = Path(linker_cache).read_bytes()[: 4 << 20]
        except OSError as error:
            self.count(error)
            return
        for path in sorted(set(re.findall(rb"/[^\0\n]+", cache))):
            requests = self.matching(path)
            if requests:
                yield from self._offer_path(path, requests)

    def _offer_path(self, path: bytes, requests: list[ProbeRequest]) -> Steps[None]:
        fds: list[int] = []
        try:
            beside = [path.replace(*request.companion) for request in requests if request.companion]
            fds.append((yield at_once(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))))
            fds.extend(
                os.open(one, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) for one in beside if os.path.exists(one)
            )
            yield from self.offer(HOST, os.fsdecode(path), fds[0], fds[1:], requests, keep=True)
        except OSError as error:
            self.count(error)
        finally:
            for fd in fds:
                os.close(fd)

    def release_unused(self, used: set[FileId]) -> None:
        """Call once per scan. Releases files that were missing from ``used`` twice in a row."""
        for key, file in list(self._files.items()):
            file.unused = 0 if key in used or file.keep else file.unused + 1
            if file.unused > 1:
                self._let_go(key)

    def let_go_of_written(self) -> None:
        """Removes the probes from files that are written to. Their processes are scanned again."""
        if written := self.writes.read_events():
            for key in [key for key, file in self._files.items() if not written.isdisjoint(file.written)]:
                self._let_go(key)

    def close(self) -> None:
        for key in list(self._files):
            self._let_go(key)
        self.writes.close()
        detach.finish()

    def _let_go(self, key: FileId) -> None:
        file = self._files.pop(key)
        file.gone = True
        self._end(file)

    def _end(self, file: _File) -> None:
        self._close(file.instances)
        for forget in file.reported.values():
            forget()
        for number in list(file.written):
            self._unwatch(file, number)
        file.reported.clear()
        self._give_back(file, 0)

    @staticmethod
    def _close(instances: list[Instance]) -> None:
        while instances:
            instances.pop(0).close()

    def _unwatch(self, file: _File, number: int) -> None:
        if number in file.written:  # else it was released meanwhile
            file.written.remove(number)
            self.writes.forget(number)

    def _give_back(self, file: _File, keep: int) -> None:
        while len(file.taken) > keep:
            owner, n = file.taken.pop()
            self._shares.give_back(owner.uid, n)
