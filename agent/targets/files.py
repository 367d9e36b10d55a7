"""Files that processes run and map: each is examined once for everybody who asked, within its owner's share, and let go
of when nobody uses it.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.binaries.contract import Analysis, Instance
from agent.common.fairness import NoPlaceError, Places
from agent.errors import printable
from agent.kernel import detach
from agent.kernel.limits import FACTS_KEPT, MOST_DESCRIPTORS, PROBE_SHARE, TRIES
from agent.kernel.steps import HeldUpError, Steps, Wait, at_once
from agent.log import say
from agent.targets.analyst import Analyst, Unexamined
from agent.targets.asked import HOST, Ask, FileId, Owner, Stamp, Target
from agent.targets.unseen import UnseenPrograms
from agent.targets.writes import Writes


class DescriptorsUsedError(NoPlaceError):
    """A user's share of the descriptors for probes is used up."""

    remedy = "raise LimitNOFILE of tickscope (ulimit -n), of which half is for probes"


def raise_soft_limit() -> int:
    """Gives this process the descriptors that its hard limit allows, within reason; how many that are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def probe_descriptors() -> Places:
    """Those that probes may take: half of this process's soft limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = soft if soft != resource.RLIM_INFINITY else MOST_DESCRIPTORS
    return Places(int(most * PROBE_SHARE), what="probe descriptors")


class _File:
    def __init__(self, stamp: Stamp, keep: bool) -> None:
        self.stamp, self.keep, self.unused, self.gone = stamp, keep, 0, False
        self.instances: list[Instance] = []
        self.written: list[int] = []
        self.taken: list[tuple[Owner, int]] = []
        #: All by ask: who was asked, and need not be again; whose share did not allow what its probes would have taken
        #: (0: of something else than descriptors); attempts that failed; what forgets what was told of it.
        self.asked: set[int] = set()
        self.refused: dict[int, tuple[Owner, int]] = {}
        self.tries: Counter[int] = Counter()
        self.told: dict[int, Callable[[], object]] = {}


class Files:
    """digesting: of ``helper.digest``. multi: uprobes take a descriptor a program, not one a place."""

    def __init__(
        self,
        analyst: Analyst,
        digesting: Callable[[list[int]], Wait],
        shares: Places,
        unseen: UnseenPrograms,
        failures: Counter[str],
        multi: bool,
    ) -> None:
        self.libraries: list[tuple[bytes, Ask]] = []
        self.executables: list[Ask] = []
        #: Of all libraries of the processes for which a function of the pid holds.
        self.mapped: list[tuple[Callable[[int], bool], Ask]] = []
        self._analyst, self._digesting, self._shares, self._unseen, self._failures, self._multi = (
            analyst,
            digesting,
            shares,
            unseen,
            failures,
            multi,
        )
        self.writes = Writes()
        self._files: dict[FileId, _File] = {}
        self._facts: OrderedDict[tuple[object, ...], Any] = OrderedDict()
        #: Whether a device is that of an overlay which root has mounted: others could tell the inode and ctime of
        #: somebody else's file.
        self.overlaid: Callable[[int], bool] = lambda device: False

    def matching(self, path: bytes) -> list[Ask]:
        name = path.rsplit(b"/", 1)[-1]
        return [ask for pattern, ask in self.libraries if re.fullmatch(pattern, name)]

    def known(self, file: FileId) -> bool:
        return file in self._files

    def wanting(self, file: FileId, owner: Owner | None = None) -> bool:
        """Whether it is to be offered again: it was written to, attaching failed, or was refused for want of
        descriptors, and this owner's share (None: the refused one's) has them now.
        """
        known = self._files.get(file)
        return known is None or bool(known.tries.keys() - known.asked or self._allowed(known, owner))

    def _allowed(self, file: _File, owner: Owner | None) -> list[int]:
        """Asks that were refused, and would not be now."""
        return [ask for ask, (whose, n) in file.refused.items() if not self._shares.refusal((owner or whose).uid, n)]

    def count(self, error: Exception) -> None:
        """Processes end, and containers hold what may not be opened: neither stops the scan."""
        number = error.errno if isinstance(error, OSError) else None
        self._failures[errno.errorcode.get(number or 0, type(error).__name__)] += 1

    def offer(
        self,
        owner: Owner,
        path: str,
        fd: int,
        others: list[int],
        asks: list[Ask],
        keep: bool = False,
        layer: bool = False,
    ) -> Steps[FileId]:
        """Has a file examined for all who ask and did not know it yet. others: descriptors of its companions, in order;
        layer: it lies in an overlay's.
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
            file.asked.discard(again)
        for ask in asks:
            if id(ask) not in file.asked and ask.wanted(path):
                file.asked.add(id(ask))
                mine = [others.pop(0)] if ask.companion and others else []
                yield from self._ask(ask, file, Target(owner, path, fd, key, self._taker(id(ask), file, owner)), mine)
        return key

    def _taker(self, ask: int, file: _File, owner: Owner) -> Callable[[int, int], None]:
        def take(links: int, places: int) -> None:
            n = links if self._multi else max(links, places)
            if why := self._shares.refusal(owner.uid, n):
                file.refused[ask] = owner, n
                raise DescriptorsUsedError(errno.EDQUOT, why)
            self._shares.take(owner.uid, n)
            file.taken.append((owner, n))

        return take

    def _ask(self, ask: Ask, file: _File, target: Target, others: list[int]) -> Steps[None]:
        """What somebody makes of a file. Anybody can put files here, so no fault in one may stop the scan."""
        number, taken = id(ask), len(file.taken)
        instances, failed = list[Instance](), True
        watched = self.writes.watch(target.fd)  # before it is read
        file.written.append(watched)
        try:
            for plain in (yield from self._examine(ask, file.stamp, target, others)):
                if not file.gone and (one := (yield from ask.found(target, Analysis.of(plain)))) is not None:
                    instances.append(one)
            failed = False
            file.tries.pop(number, None)
            self._forget(file, number)
        except Unexamined as why:
            again = why.passing and self._again(file, number, why)
            self._tell(
                ask,
                file,
                target,
                f"could not be examined: {why}",
                "it is tried again" if again else "see docs/limits.md" if why.overrun else "",
            )
        except NoPlaceError as error:
            file.refused.setdefault(number, (target.owner, 0))
            self._tell(ask, file, target, str(error.strerror), error.remedy)
        except OSError as error:
            self.count(error)
            again = self._again(file, number, error)
            self._tell(
                ask,
                file,
                target,
                f"cannot attach: {error.strerror}",
                "it is tried again" if again else "see `tickscope doctor`",
            )
        except Exception as error:  # noqa: BLE001 - said, and the file is left alone
            say(f"tickscope: cannot examine {printable(target.path)}: {type(error).__name__}: {error}")
        if failed:
            self._close(instances)
        if not instances:
            self._give_back(file, taken)
            self._unwatch(file, watched)
        file.instances += instances
        if file.gone:  # let go of meanwhile
            self._end(file)

    @staticmethod
    def _again(file: _File, ask: int, error: Exception) -> bool:
        """After a failure, whether it is tried again. What somebody else held up does not count."""
        file.tries[ask] += not isinstance(error, HeldUpError)
        if file.tries[ask] < TRIES:
            file.asked.discard(ask)
        return ask not in file.asked

    def _examine(self, ask: Ask, stamp: Stamp, target: Target, others: list[int]) -> Steps[Any]:
        """The facts, from memory where the same content was examined before."""
        beside = [(st.st_dev, st.st_ino, st.st_mtime_ns, st.st_size) for st in map(os.fstat, others)]
        key = (*ask.question, target.file, stamp, *beside)
        if key not in self._facts:
            try:
                self._facts[key] = yield from self._fresh(ask, target, others)
            except Unexamined as why:
                if why.passing:
                    raise
                self._facts[key] = why
            while len(self._facts) > FACTS_KEPT:
                self._facts.popitem(last=False)
        facts = self._facts.get(key)
        if isinstance(facts, Unexamined):
            raise Unexamined(str(facts), facts.overrun)
        return facts

    def _fresh(self, ask: Ask, target: Target, others: list[int]) -> Steps[Any]:
        """What the examiner finds, or has found in a copy: every container has copies of few libraries, and its first
        program does not wait for an examiner.
        """
        fds = [target.fd, *others]
        try:
            copies = (
                (*ask.question, (yield self._digesting(fds))) if any(ask is one for _, one in self.libraries) else None
            )
        except TimeoutError:
            raise
        except OSError:  # too large: each is examined
            copies = None
        if copies is not None and copies in self._facts:
            self._facts.move_to_end(copies)
            return self._facts[copies]
        facts = yield self._analyst.examining(ask.analysis, fds, **ask.arguments)
        if copies is not None:
            self._facts[copies] = facts
        return facts

    def _tell(self, ask: Ask, file: _File, target: Target, reason: str, remedy: str) -> None:
        self._forget(file, id(ask))
        file.told[id(ask)] = self._unseen.of(ask.probe, target.path, target.owner, "unavailable", reason, remedy)

    def _forget(self, file: _File, ask: int) -> None:
        """Takes back what was told of it, be it for what is told now."""
        forget = file.told.pop(ask, None)
        if forget is not None:
            forget()

    def offer_known(self, linker_cache: str) -> Steps[None]:
        """Every path in the dynamic linker's cache that somebody asked for."""
        try:
            cache = Path(linker_cache).read_bytes()[: 4 << 20]
        except OSError as error:
            self.count(error)
            return
        for path in sorted(set(re.findall(rb"/[^\0\n]+", cache))):
            asks = self.matching(path)
            if asks:
                yield from self._offer_path(path, asks)

    def _offer_path(self, path: bytes, asks: list[Ask]) -> Steps[None]:
        fds: list[int] = []
        try:
            beside = [path.replace(*ask.companion) for ask in asks if ask.companion]
            fds.append((yield at_once(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))))
            fds.extend(
                os.open(one, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) for one in beside if os.path.exists(one)
            )
            yield from self.offer(HOST, os.fsdecode(path), fds[0], fds[1:], asks, keep=True)
        except OSError as error:
            self.count(error)
        finally:
            for fd in fds:
                os.close(fd)

    def release_unused(self, used: set[FileId]) -> None:
        """Once a scan: lets go of those that were in no ``used`` twice in a row."""
        for key, file in list(self._files.items()):
            file.unused = 0 if key in used or file.keep else file.unused + 1
            if file.unused > 1:
                self._let_go(key)

    def let_go_of_written(self) -> None:
        """Takes the probes from files that are written to; who runs one then is looked at anew."""
        if written := self.writes.heard():
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
        for forget in file.told.values():
            forget()
        for number in list(file.written):
            self._unwatch(file, number)
        file.told.clear()
        self._give_back(file, 0)

    @staticmethod
    def _close(instances: list[Instance]) -> None:
        while instances:
            instances.pop(0).close()

    def _unwatch(self, file: _File, number: int) -> None:
        if number in file.written:  # else it was let go of meanwhile
            file.written.remove(number)
            self.writes.forget(number)

    def _give_back(self, file: _File, keep: int) -> None:
        while len(file.taken) > keep:
            owner, n = file.taken.pop()
            self._shares.give_back(owner.uid, n)
