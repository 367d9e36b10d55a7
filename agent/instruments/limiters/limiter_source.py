"""Attaches the limiter family's uprobes to Go binaries, keeps their state, and samples hot ones (limiter_sampling.py).

A binary is attached once, by inode: every process that runs it is then observed from its first instruction. Decisions
count from when all its probes are attached to when the first is removed, so that calls under way at these times are
left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import numpy as np

from agent.batch import Batch, make
from agent.binaries.contract import Analysis, Instance
from agent.common.clocks import boot_ns
from agent.common.copies import only
from agent.common.printable import printable
from agent.contracts import Due, Pending
from agent.instruments.kind import Attached, render
from agent.instruments.limiters.binary import Binary, any_file, key_of, name_of, status_of
from agent.instruments.limiters.decisions import Called, unnamed
from agent.instruments.limiters.limiter_sampling import Schedule
from agent.instruments.limiters.uprobes import GoProbes
from agent.kernel import bpf
from agent.kernel.detach import finish
from agent.kernel.loaded_families import Family
from agent.kernel.ring import SharedArray
from agent.kernel.steps import Steps, run
from agent.kernel.wire_structs import Wire
from agent.limiters.catalogue import seen
from agent.limiters.settings import HITS_PER_S
from agent.tables import TABLES
from agent.targets.asked import FileId, Target
from agent.targets.attacher import Attacher
from agent.targets.processes import link_of
from agent.targets.unprobed import UnprobedProgram, UnprobedPrograms

_CHECK_NS = 1_000_000_000
#: Temporary errors of attaching: a busy helper, no descriptors or memory at the moment.
_PASSING = (errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: How long records of a window may be under way, and the resolution of callers may take.
_SETTLE_NS, _NAMED_NS = 60_000_000, 2_000_000_000


class GoLimiters(Due, Pending):
    """Implements ``agent.contracts.Source``: rows of probe_status for each binary, of limiter_rate for sampled ones,
    and losses of the family's own.

    most: hits per second of a binary and library above which it is sampled. ``found`` opens instances
    (``ProbeRequest.found``), ``feed`` takes records of decisions. ``binaries``: known binaries by (device, inode) and
    library.
    """

    name = "limiter"

    def __init__(
        self, family: Family, wire: Wire, helper: Attacher, unprobed_programs: UnprobedPrograms, most: int = HITS_PER_S
    ) -> None:
        self.binaries: dict[tuple[FileId, str], Binary] = {}
        self._family, self._unprobed, self._most = family, unprobed_programs, most
        self._probes = GoProbes(family, wire, helper, self.binaries)
        self._none = np.empty(0, wire.dtype("limiter_decision"))
        self._counts = SharedArray(family.maps["limiter_counts"], wire.dtype("limiter_counts")).values
        self._news: list[Binary] = []
        self._last: list[Batch] = []
        self._numbers = count(1)
        self.called: Called = unnamed  # set to that of ``Sites``
        self.known: Called = lambda records: np.ones(len(records), np.bool_)
        self._unmatched = self._hits = 0
        self._checked_ns = self._checked_at_ns = 0

    @property
    def orphans(self) -> int:
        """Decisions that began and never ended."""
        return int(self._counts["orphans"][0])

    def found(self, target: Target, analysis: Analysis) -> Steps[Instance | None]:
        """Attaches to a library or function of a file if possible, else reports why not. Raises OSError if attaching
        fails, with nothing left behind.
        """
        if "library" not in analysis.facts:
            return Attached((), render(self._unprobed, target, analysis, "limiter"))
        known = {name: value for name, value in analysis.facts.items() if name != "trouble"}
        known |= {"state": analysis.state, "reason": analysis.reason, "remedy": analysis.remedy}
        number = list(seen()).index(known["library"]) if known["library"] else 0
        mapped = known.get("mapped")  # the process then runs another file
        one = Binary(
            path=printable(link_of(target.fd) or target.path),
            key=any_file(number) if mapped else key_of(target.fd, shared=not target.file.device, library=number),
            uid=target.owner.uid,
            number=next(self._numbers),
            schedule=Schedule(self._most),
            sites=[(one.program, one.offsets) for one in analysis.attachments],
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
        forget: Callable[[], object] = bool
        if one.file < 0:  # its row of probe_status comes with the others
            self._unprobed.report(
                UnprobedProgram(name_of(one), one.path, one.state, one.reason, one.remedy, target.owner.uid)
            )
            forget = partial(self._unprobed.forget, name_of(one), one.path)
        self._news.append(one)
        return Attached((), partial(self._release, one, place), forget)

    def _release(self, one: Binary, place: tuple[FileId, str]) -> None:
        self._end(one)
        self._let_go(one)
        self.binaries.pop(place, None)
        with contextlib.suppress(OSError):  # before 5.19 it could not be written either
            bpf.delete(self._family.maps["limiter_binaries"], one.key)
        one.state, one.reason, one.remedy = "off", "no process uses it any more", ""
        self._news.append(one)

    def _end(self, one: Binary) -> None:
        """Removes a binary after its last process, in a window or not."""
        if not one.sampled:
            return
        now_ns = boot_ns()
        if one.phase:
            until_ns = one.until_ns if one.phase == "settling" else now_ns
            records = np.concatenate([self._none, *one.window])
            self._last += one.rates.window(records, one.from_ns, until_ns, self.called)
        self._last += one.rates.ended(now_ns)

    def _let_go(self, one: Binary) -> None:
        self._probes.detach(one)
        if one.file >= 0:
            os.close(one.file)
            one.file = -1

    @property
    def due_ns(self) -> int:
        return min((one.due_ns for one in self._moving()), default=0)

    def _moving(self) -> list[Binary]:
        """Binaries whose probes are being attached or removed, or soon will be."""
        known = (one for one in self.binaries.values() if one.file >= 0 and not one.attaching)
        return [one for one in known if one.state != "unavailable" and (one.sampled or not one.links)]

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct limiter_decision``."""
        for one in self.binaries.values():
            if not one.sampled:
                continue
            of_window = (records["binary"] == one.number) & (records["every"] != 1)
            if of_window.any():
                one.window.append(only(records, of_window))

    def pending(self, now_ns: int) -> bool:
        """Whether a binary's state changed, or limiters are asked too often."""
        return bool(self._news or self._last) or int(self._counts["hits"][0]) - self._hits >= self._most

    def drain(self, now_ns: int) -> Iterator[Batch]:
        news, self._news = self._news, []
        for one in news:
            yield status_of(one, now_ns)
        last, self._last = self._last, []
        yield from last
        for one in self._moving():
            yield from self._move(one)
        hits = int(self._counts["hits"][0])
        if now_ns - self._checked_at_ns >= _CHECK_NS or hits - self._hits >= self._most:
            self._hits, self._checked_at_ns = hits, now_ns
            for one in self.binaries.values():
                if one.links and not one.attaching and one.measured and not one.sampled:
                    self._regulate(one)
        if now_ns - self._checked_ns >= _CHECK_NS:
            yield from self._missed(now_ns)
            self._checked_ns = now_ns

    def _regulate(self, one: Binary) -> None:
        """Starts to sample a permanently probed binary that was hit too often. Its probes stay for a first window."""
        now_ns, hits = boot_ns(), self._probes.hits(one)
        passed_ns = max(now_ns - one.sampled_ns, _CHECK_NS)
        if hits - one.hits <= one.schedule.budget * passed_ns / 1e9:
            if now_ns - one.sampled_ns >= _CHECK_NS:
                one.hits, one.sampled_ns = hits, now_ns
            return
        rate = (hits - one.hits) / 2 / max(now_ns - one.sampled_ns, 1) * 1e9
        one.sampled, one.state = True, "degraded"
        one.reason = (
            f"about {rate:.0f} decisions a second: sampled; `tickscope limiters` shows how exact its totals are"
        )
        one.remedy = "for exact totals have the program report its decisions (docs/adapters.md)"
        self._probes.publish(one, one.schedule.every)
        self._open(one, boot_ns())
        one.schedule.begin(one.from_ns)
        one.rates.begin(one.from_ns)
        self._news.append(one)

    def _open(self, one: Binary, now_ns: int) -> None:
        one.phase, one.from_ns, one.hits_asked = "open", now_ns, one.hits
        one.due_ns = now_ns + one.schedule.window_ns

    def _move(self, one: Binary) -> Iterator[Batch]:
        """The next action for a binary whose probes are being attached or removed."""
        now_ns = boot_ns()
        if now_ns < one.due_ns:
            return
        if one.phase == "open":
            self._close(one)
        elif one.phase == "settling":
            yield from self._settle(one, now_ns)
        else:
            one.hits_before = self._probes.hits(one)
            run(self._probes.attach(one), lambda _, error: self._attached(one, error))

    def _attached(self, one: Binary, error: Exception | None) -> None:
        self._report_failure(one, error)
        if error is None and one.sampled and one.links:
            self._open(one, one.since_ns)

    def _close(self, one: Binary) -> None:
        """Ends a window: removes its probes, or leaves sampling."""
        calm = one.schedule.calm(self._probes.hits(one) - one.hits_asked, max(boot_ns() - one.from_ns, 1))
        if calm:
            self._probes.publish(one, 1)
        else:
            self._probes.detach(one)
        one.phase, one.until_ns = "settling", boot_ns()
        one.due_ns = one.until_ns + _SETTLE_NS

    def _settle(self, one: Binary, now_ns: int) -> Iterator[Batch]:
        """Rows of a closed window, once all of its records and callers are there."""
        records = np.concatenate([self._none, *one.window])
        unnamed_yet = now_ns - one.until_ns < _NAMED_NS and not (self.known(records) | (records["stack"] == 0)).all()
        if unnamed_yet or (one.closing is not None and not one.closing.done):
            one.window, one.due_ns = [records], now_ns + _SETTLE_NS // 4
            return
        one.window, one.phase, one.closing = [], "", None
        yield from one.rates.window(records, one.from_ns, one.until_ns, self.called)
        if one.links:
            one.sampled, one.state, one.reason, one.remedy = False, "attached", "", ""
            one.sampled_ns = now_ns
            self._news.append(one)
            return
        one.schedule.closed(one.asked_ns, now_ns, self._probes.hits(one) - one.hits_before)
        one.due_ns = one.schedule.next_ns(now_ns)

    def _report_failure(self, one: Binary, error: Exception | None) -> None:
        """Reports a failure. A busy helper is not the binary's fault: it is tried again."""
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
        """Detaches everywhere, and waits for the end."""
        for one in self.binaries.values():
            self._let_go(one)
        finish()
