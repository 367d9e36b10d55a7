"""Attaches the limiter family's uprobes to Go binaries, keeps what is known of each, and holds their cost to a share of
the program's time (``Share``).

A binary is attached once, by inode: every process that runs it is then seen from its first instruction. Decisions count
from when all its probes are attached to when the first is taken away, so that what is under way meanwhile is left out
rather than half seen.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from agent.batch import Batch, make
from agent.common.alive import gone
from agent.common.clocks import boot_ns
from agent.common.copies import only
from agent.contracts import Due
from agent.errors import printable
from agent.kernel import bpf
from agent.kernel.detach import finish
from agent.kernel.load import Family
from agent.kernel.ring import SharedArray
from agent.kernel.steps import Steps, run
from agent.kernel.wire import Wire
from agent.limiters.catalogue import seen
from agent.probes.beside.go_binary import Binary, any_file, key_of, path_of, status_of
from agent.probes.beside.go_decisions import Called, unnamed
from agent.probes.beside.go_looks import GoLooks
from agent.probes.beside.go_probes import GoProbes
from agent.probes.beside.go_rates import Rates
from agent.probes.beside.go_unseen import unprobed, unseen
from agent.probes.beside.hit_cost import HitCost
from agent.probes.beside.share import Share
from agent.tables import TABLES
from agent.targets.asked import FileId, Release, Target
from agent.targets.attacher import Attacher
from agent.targets.unseen import UnseenPrograms

_CHECK_NS = 1_000_000_000
#: Errors of attaching that are over some time: a helper that is held up, no descriptors or memory at the moment.
_PASSING = (errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Probe time of all binaries together after which each is looked at, where a second has not passed; how long records of
#: a window may take to come. And until it is known who asks, for which the first window waits.
_LOOK_NS, _SETTLE_NS, _NAMED_NS = 20_000_000, 60_000_000, 2_000_000_000


class GoLimiters(Due):
    """Implements ``agent.contracts.Source``: rows of probe_status for each binary, of limiter_rate for those that are
    watched in windows, and losses of the family's own.

    cost: what a hit costs; most: share of a thread's time that the probes of a binary and library may take all of the
    time. ``found`` is what ``Targets`` calls for each executable (``Ask.found``), ``feed`` takes records of decisions.
    ``binaries`` holds what is known, by (device, inode) and library.
    """

    name = "limiter"

    def __init__(
        self, family: Family, wire: Wire, helper: Attacher, cost: HitCost, unseen: UnseenPrograms, most: float
    ) -> None:
        self.binaries: dict[tuple[FileId, str], Binary] = {}
        self._family, self._cost, self._unseen, self._most = family, cost, unseen, most
        self._probes = GoProbes(family, wire, helper, self.binaries)
        self.looks = GoLooks(family, wire, helper, self.binaries)
        self._none = np.empty(0, wire.dtype("limiter_decision"))
        self._counts = SharedArray(family.maps["limiter_counts"], wire.dtype("limiter_counts")).values
        self._news: list[Binary] = []
        self._numbers = count(1)
        self.called: Called = unnamed  # as ``Sites`` knows it
        self.known: Called = lambda records: np.ones(len(records), np.bool_)
        self._unmatched = self._hits = 0
        self._checked_ns = self._looked_ns = 0

    @property
    def orphans(self) -> int:
        """Decisions that began and never ended."""
        return int(self._counts["orphans"][0])

    def found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """Attaches to an executable where it is one to attach to; returns what lets go of it. Raises OSError where it
        cannot, with nothing left behind.
        """
        releases: list[Release] = [unprobed(self._unseen, target, facts["others"])]

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
        if not self._cost.tried:
            yield from self._probes.measure(self._cost)
        number = list(seen()).index(known["library"]) if known["library"] else 0
        mapped = known.get("mapped")  # what runs is another file then
        alone = known.get("alone") and len(known["alone"]) < len(known["sites"])
        one = Binary(
            path=printable(path_of(target.fd) or target.path),
            key=any_file(number) if mapped else key_of(target.fd, shared=not target.file.device, library=number),
            uid=target.owner.uid,
            number=next(self._numbers),
            rates=Rates(any("_2019" in program for program, _ in known["sites"])),
            share=Share(self._cost.both, self._cost.alone if alone else 0.0, self._most),
            **known,
        )
        place = target.file, one.library
        self.binaries[place] = one
        try:
            if one.state != "unavailable":
                target.reserve(len(one.sites) + 1, sum(len(places) for _, places in one.sites) + 1)
                one.file = os.dup(target.fd)
                yield from self._probes.attach(one)
        except OSError:
            self._let_go(one)
            self.binaries.pop(place, None)
            raise
        forget = unseen(self._unseen, one, target) if one.file < 0 else None
        self._news.append(one)

        def release() -> None:
            self._let_go(one)
            if forget is not None:
                forget()
            self.binaries.pop(place, None)
            with contextlib.suppress(OSError):  # kernels before 5.19 did not let us write it either
                bpf.delete(self._family.maps["limiter_binaries"], one.key)
            one.state, one.reason, one.remedy = "off", "no process uses it any more", ""
            self.looks.turn()
            self._news.append(one)

        return release

    def _let_go(self, one: Binary) -> None:
        self._probes.detach(one)
        if one.file >= 0:
            os.close(one.file)
            one.file = -1

    def fds(self) -> list[int]:
        return []

    @property
    def due_ns(self) -> int:
        return min((one.due_ns for one in self._moving()), default=0)

    def _moving(self) -> list[Binary]:
        """Those whose probes come and go, or are to come."""
        return [
            b
            for b in self.binaries.values()
            if b.file >= 0
            and not b.attaching
            and b.state != "unavailable"
            and (b.share.mode == "windows" or b.opening or not b.links)
        ]

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct limiter_decision``."""
        numbers = {int(number) for number in np.unique(records["binary"])}
        for one in self.binaries.values():
            if one.number in numbers:
                mine = only(records, (records["binary"] == one.number) & (records["woke"] != 2))
                one.share.busy.feed(mine)
                windowed = mine["every"] != 1  # those of before may come late
                if windowed.any() and (one.share.mode == "windows" or one.opening):
                    one.window.append(only(mine, windowed))
                if not windowed.all():
                    one.rates.before(only(mine, ~windowed))

    def drain(self, now_ns: int) -> Iterator[Batch]:
        news, self._news = self._news, []
        for one in news:
            yield status_of(one, now_ns)
        for one in self._moving():
            yield from self._move(one)
        for one in self.binaries.values():
            if not one.rates.pids or one.links or one.window:
                continue
            if ended := {pid for pid in one.rates.pids if gone(pid, None)}:
                yield from one.rates.ended(now_ns, ended, self.called)
                self.looks.turn()
            elif one.share.mode == "windows" and not one.attaching and one.asked_ns <= one.rates.covered_ns:
                yield from one.rates.between(now_ns, self.called)
        hits = int(self._counts["hits"][0])
        if now_ns - self._looked_ns >= _CHECK_NS or (hits - self._hits) * self._cost.alone >= _LOOK_NS:
            self._hits, self._looked_ns = hits, now_ns
            for one in self.binaries.values():
                if one.links and not one.attaching and one.measured and one.share.mode != "windows":
                    self._regulate(one)
        if now_ns - self._checked_ns >= _CHECK_NS:
            yield from self._missed(now_ns)
            self._checked_ns = now_ns

    def _regulate(self, one: Binary) -> None:
        """Looks at the hits of one that is watched all of the time."""
        before, now_ns = one.hits, boot_ns()
        with contextlib.suppress(OSError):
            one.hits = self._probes.hits(one)
        mode = one.share.look(now_ns, one.hits - before)
        if mode != one.share.mode and not one.opening:
            self._probes.detach(one)
            one.rates.begin(one.until_ns)
            self._turn(one, mode, now_ns)

    def _turn(self, one: Binary, mode: str, now_ns: int) -> None:
        """Has it watched otherwise from now on, once its probes are gone."""
        rate = f"{one.share.rate:.0f} decisions a second"
        one.share.begin(mode, now_ns)
        one.due_ns, one.opening = one.share.next_ns(now_ns) if mode == "windows" else now_ns, mode != "windows"
        one.state, one.reason = {
            "both": ("attached", ""),
            "alone": ("attached", f"{rate}: watched at its return only, how long a decision takes is not seen"),
            "windows": ("degraded", f"{rate}: watched in windows, see `tickscope limiters` for what that makes of all"),
        }[mode]
        self.looks.turn()
        self._news.append(one)

    def _move(self, one: Binary) -> Iterator[Batch]:
        """What is to be done next with one whose probes come and go."""
        now_ns = boot_ns()
        if now_ns < one.due_ns:
            return
        if one.links and one.until_ns < one.since_ns:
            if one.opening:
                one.until_ns = now_ns
                self._probes.publish(one, 1)
            else:
                self._probes.detach(one)
            one.due_ns = one.until_ns + _SETTLE_NS
        elif one.links or (one.closing is not None and one.closing.done and one.asked_ns > one.rates.covered_ns):
            yield from self._told(one, now_ns)
        elif one.closing is not None and not one.closing.done:
            one.due_ns = now_ns + _SETTLE_NS // 4
        else:
            one.closing = None
            run(self._probes.attach(one), lambda _, error: self._tell_failure(one, error))

    def _told(self, one: Binary, now_ns: int) -> Iterator[Batch]:
        """What a window has shown, once it is closed and all of its records are there."""
        records = np.concatenate([self._none, *one.window])
        if now_ns - one.until_ns < _NAMED_NS and not (self.known(records) | (records["stack"] == 0)).all():
            one.window, one.due_ns = [records], now_ns + _SETTLE_NS
            return
        one.window, one.closing = [], None
        until_hits, one.hits = one.hits, self._probes.hits(one)
        yield from one.rates.window(records, one.since_ns, one.until_ns, one.share.cost_ns, self.called, one.opening)
        opening, one.opening = one.opening, False
        self.looks.turn()
        if opening:
            return
        watched = one.until_ns - one.since_ns
        mode = one.share.closed(
            one.asked_ns,
            watched,
            one.until_ns,
            until_hits - one.hits_asked,
            one.hits - until_hits,
            len(records),
            one.rates.held,
        )
        if mode != "windows":
            self._turn(one, mode, now_ns)
        else:
            one.due_ns = one.share.next_ns(now_ns)

    def _tell_failure(self, one: Binary, error: Exception | None) -> None:
        """What holds the helper up for a while is not this binary's: it is tried again."""
        if one.file < 0 or error is None:
            return
        if isinstance(error, OSError) and error.errno in _PASSING:
            one.due_ns = boot_ns() + _CHECK_NS
        else:
            one.state, one.reason = "unavailable", f"turning its probes on: {error}"
            one.remedy = "see `tickscope doctor`"
            self._news.append(one)

    def _missed(self, now_ns: int) -> Iterator[Batch]:
        total = int(self._counts["unmatched"][0])
        if total > self._unmatched:
            stage = TABLES["loss"].code("stage", "kernel")
            yield make(
                "loss",
                1,
                t_ns=now_ns,
                stage=stage,
                source=b"limiter_deciding",
                count=total - self._unmatched,
                from_ns=self._checked_ns or now_ns,
                to_ns=now_ns,
            )
            self._unmatched = total

    def close(self) -> None:
        """Detaches everywhere, and waits until that is done."""
        for one in self.binaries.values():
            self._let_go(one)
        self.looks.close()
        finish()
