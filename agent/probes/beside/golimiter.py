"""Attaches the limiter family's uprobes to Go binaries, keeps what is known of each, and holds their cost to a budget.

A binary is attached once, by inode: every process that runs it is then seen from its first instruction. Decisions count from when
all its probes are attached to when the first is taken away, so that what is under way meanwhile is left out rather than half seen.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from agent.batch import Batch, make
from agent.errors import printable
from agent.kernel import bpf
from agent.kernel.detach import close_aside, finish
from agent.kernel.load import Family
from agent.kernel.ring import SharedArray
from agent.kernel.steps import Steps, run
from agent.kernel.wire import Wire
from agent.limiters.catalogue import seen
from agent.probes.beside.go_binary import Binary, any_file, key_of, name_of, path_of, status_of
from agent.tables import TABLES
from agent.targets.asked import FileId, Release, Target
from agent.targets.attacher import Attacher
from agent.targets.unseen import Unseen, UnseenPrograms

_CHECK_NS = 1_000_000_000
#: Errors of attaching that are over some time: a helper that is held up, no descriptors or memory at the moment.
_PASSING = (errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_HITS_A_DECISION, _LEAST_EVERY, _MOST_EVERY, _CALM = 2, 2, 60, 0.5


class GoLimiters:
    """Implements ``agent.contracts.Source``: rows of probe_status for each binary, and losses of the family's own.

    budget: uprobe hits a second, binary and library (two a decision, four a Wait); one over it is watched one second in ``every``.
    ``found`` is what ``Targets`` calls for each executable (``Ask.found``). ``binaries`` holds what is known, by (device, inode) and library.
    """

    name = "limiter"

    def __init__(self, family: Family, wire: Wire, helper: Attacher, budget: int, unseen: UnseenPrograms) -> None:
        self.binaries: dict[tuple[FileId, str], Binary] = {}
        self._family, self._helper, self._budget, self._unseen = family, helper, budget, unseen
        self._returning = {program.function for program in family.probe.programs if program.kind == "uretprobe"}
        self._value = wire.dtype("limiter_binary")
        self._counts = SharedArray(family.maps["limiter_counts"], wire.dtype("limiter_counts")).values
        self._news: list[Binary] = []
        self._unmatched = 0
        self._checked_ns = 0

    @property
    def orphans(self) -> int:
        """Decisions that began and never ended."""
        return int(self._counts["orphans"][0])

    def found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """Attaches to an executable where it is one to attach to; returns what lets go of it. Raises OSError where it cannot, with nothing left behind."""
        releases: list[Release] = [self._others(target, facts["others"])]

        def release() -> None:
            for one in releases:
                one()

        try:
            for known in facts["probed"]:
                let_go = yield from self._found(target, known)
                releases.append(let_go)
        except OSError:
            release()
            raise
        return release

    def _found(self, target: Target, known: dict[str, Any]) -> Steps[Release]:
        """One library of it."""
        number = list(seen()).index(known["library"]) if known["library"] else 0
        mapped = known.get("mapped")  # what runs is another file then
        one = Binary(
            path=printable(path_of(target.fd) or target.path),
            key=any_file(number) if mapped else key_of(target.fd, shared=not target.file.device, library=number),
            uid=target.owner.uid,
            **known,
        )
        place = target.file, one.library
        self.binaries[place] = one
        try:
            if one.state != "unavailable":
                target.reserve(len(one.sites) + 1, sum(len(places) for _, places in one.sites) + 1)
                one.file = os.dup(target.fd)
                yield from self._attach(one, 1)
        except OSError:
            self._let_go(one)
            self.binaries.pop(place, None)
            raise
        forget = self._tell(one, target) if one.file < 0 else None
        self._news.append(one)

        def release() -> None:
            self._let_go(one)
            if forget is not None:
                forget()
            self.binaries.pop(place, None)
            with contextlib.suppress(OSError):  # kernels before 5.19 did not let us write it either
                bpf.delete(self._family.maps["limiter_binaries"], one.key)
            one.state, one.reason, one.remedy = "off", "no process uses it any more", ""
            self._news.append(one)

        return release

    def _tell(self, one: Binary, target: Target) -> Release:
        """In ``status``; the row of probe_status comes with the others."""
        self._unseen.tell(Unseen(name_of(one), one.path, one.state, one.reason, one.remedy, target.owner.uid))
        return lambda: self._unseen.forget(name_of(one), one.path)

    def _others(self, target: Target, packages: list[str]) -> Release:
        """Tells of limiters that the program contains and that are not probed; returns what forgets it."""
        if not packages:
            return lambda: None
        reason = f"contains {', '.join(map(printable, packages))}, whose decisions are not seen"
        return self._unseen.of(
            "limiters",
            target.path,
            target.owner,
            "unavailable",
            reason,
            "have it send its decisions to the intake socket (docs/limiters.md)",
        )

    def _attach(self, one: Binary, every: int) -> Steps[None]:
        """Attaches all probes of a binary. Raises OSError, with none attached."""
        file, one.attaching = os.dup(one.file), True  # the request may wait for longer than the binary keeps its own
        self._publish(one, 0)  # what is decided while some of them are there is left out
        try:
            for program, offsets in one.sites:
                links = yield from self._helper.attaching(
                    self._family.programs[program], file, offsets, program in self._returning
                )
                if one.file < 0:  # let go of meanwhile
                    close_aside(links)
                    return
                one.links += links
        except OSError:
            self._detach(one)
            raise
        finally:
            os.close(file)
            one.attaching = False
        one.every, one.since_ns = every, time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._publish(one, every)

    def _publish(self, one: Binary, every: int) -> None:
        """Tells the kernel's side what it needs to know of the binary."""
        value = np.zeros(1, self._value)
        shared = [b for b in self.binaries.values() if b.key == one.key and b.library_version != one.library_version]
        value["decisions"], value["every"], value["since_ns"] = one.decisions, every, one.since_ns
        value["library_version"] = b"" if shared else one.library_version.encode()
        try:
            bpf.update(self._family.maps["limiter_binaries"], one.key, value.tobytes())
        except OSError as error:  # kernels before 5.19 without CAP_BPF
            one.state, one.reason, one.measured = (
                "degraded",
                f"the library's version is not shown and the cost not bounded: {error}",
                False,
            )

    def _detach(self, one: Binary) -> None:
        """Takes the probes away, beside the loop."""
        if one.links:
            self._publish(one, 0)
            one.closing = close_aside(one.links)
            one.links = []

    def _let_go(self, one: Binary) -> None:
        self._detach(one)
        if one.file >= 0:
            os.close(one.file)
            one.file = -1

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterator[Batch]:
        news, self._news = self._news, []
        for one in news:
            yield status_of(one, now_ns)
        if now_ns - self._checked_ns >= _CHECK_NS:
            for one in self.binaries.values():
                if one.file >= 0 and one.measured and one.state != "unavailable" and self._checked_ns:
                    self._regulate(one, now_ns, (now_ns - self._checked_ns) / 1e9)
            yield from self._missed(now_ns)
            self._checked_ns = now_ns

    def _regulate(self, one: Binary, now_ns: int, seconds: float) -> None:
        """Once a second: measures a binary's hits, and turns its probes off and on where they are too many."""
        if not one.links or one.attaching:
            if one.closing and not one.closing.done:
                one.turned_ns = now_ns
            elif now_ns - one.turned_ns >= (one.every - 1) * _CHECK_NS and not one.attaching:
                one.turned_ns = now_ns
                run(self._attach(one, one.every), lambda _, error: self._tell_failure(one, error))
            return
        raw = bpf.lookup(self._family.maps["limiter_binaries"], one.key, self._value.itemsize)
        total = int(np.frombuffer(raw, self._value)["decisions"][0]) if raw else one.decisions
        rate, one.decisions = (total - one.decisions) * _HITS_A_DECISION / seconds, total
        if rate > self._budget or (one.every > 1 and rate > self._budget * _CALM):
            every = min(max(math.ceil(rate / self._budget), _LEAST_EVERY), _MOST_EVERY)
            if one.every != every:
                one.state, one.reason = (
                    "degraded",
                    f"{rate:.0f} hits a second, {self._budget} allowed: watched one second in {every}, rows marked",
                )
                self._news.append(one)
            one.every, one.turned_ns = every, now_ns
            self._detach(one)
        elif one.every > 1:
            one.every, one.state, one.reason = 1, "attached", ""
            self._publish(one, 1)
            self._news.append(one)

    def _tell_failure(self, one: Binary, error: Exception | None) -> None:
        """What holds the helper up for a while is not this binary's: it is tried again after as long as it was off now."""
        if one.file < 0 or error is None:
            return
        if isinstance(error, OSError) and error.errno in _PASSING:
            one.turned_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        else:
            one.state, one.reason, one.remedy = (
                "unavailable",
                f"turning its probes on: {error}",
                "see `tickscope doctor`",
            )
            self._news.append(one)

    def _missed(self, now_ns: int) -> Iterator[Batch]:
        total = int(self._counts["unmatched"][0])
        if total > self._unmatched:
            stage = TABLES["loss"].code("stage", "kernel")
            yield make("loss", 1, t_ns=now_ns, stage=stage, source=b"limiter_deciding", count=total - self._unmatched,
                       from_ns=self._checked_ns or now_ns, to_ns=now_ns)  # fmt: skip
            self._unmatched = total

    def close(self) -> None:
        """Detaches everywhere, and waits until that is done."""
        for one in self.binaries.values():
            self._let_go(one)
        finish()
