"""Names of limiters in Go programs: their calling functions, found once per call stack by the ELF analyzer, as part of
ids (agent/limiters/naming.py).
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.fairness import Budget, UpperBound
from agent.contracts import Pending
from agent.instruments.limiters.binary import Binary, key_of_file
from agent.instruments.limiters.decisions import unnamed
from agent.kernel.loaded_families import Family
from agent.kernel.ring import SharedArray
from agent.kernel.steps import Steps, run
from agent.kernel.wire_structs import Wire
from agent.limiters.catalogue import declared, seen
from agent.limiters.naming import WIDTH, CallSite, Names, site
from agent.targets.analyzer_pool import AnalysisFailed, AnalyzerPool
from agent.targets.asked import FileId

#: Known call stacks, and how many are removed at once; places with known functions, of all programs; places per
#: request.
STACKS, _FORGOTTEN, PLACES, _RESOLVED = 4096, 512, 1024, 24
#: Ids per program: limiters beyond them have an id with an unknown caller.
SITES = 256
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters", "call sites of limiters in one program", SITES, "the id of the others ends in `@?`", "the id"
    ),
)
_AGAIN_NS = 3_600_000_000_000
#: The part of the time that the ELF analyzer may take for programs of all users but root; its burst, s.
_PART, _MOST_S = 0.4, 0.4


@dataclass
class _Program:
    """State of one library in one binary. callers: by place. reported_ns: the last row of each id."""

    binary: Binary
    callers: dict[int, list[list[Any]]] = field(default_factory=dict)
    sites: dict[bytes, CallSite] = field(default_factory=dict)
    reported_ns: dict[bytes, int] = field(default_factory=dict)


@dataclass
class _Stack:
    number: int
    program: _Program
    places: list[int]
    name: bytes = b""


class Sites(Pending):
    """Implements ``agent.contracts.Source``: rows of ``limiter``. ``feed`` takes the kernel's call stacks; ``known``
    and ``called`` give the names of decisions' limiters.
    """

    name = "limiter_sites"

    def __init__(
        self,
        family: Family,
        wire: Wire,
        analyzers: AnalyzerPool,
        binaries: Mapping[tuple[FileId, str], Binary],
        names: Names,
    ) -> None:
        secret = SharedArray(family.maps["limiter_secret"], wire.dtype("limiter_secret")).values
        secret["seed"] = int.from_bytes(os.urandom(8), "little")
        self._secret, self._analyzers, self._binaries, self._names = secret, analyzers, binaries, names
        self._stacks: OrderedDict[int, _Stack] = OrderedDict()
        self._programs: dict[bytes, _Program] = {}
        self._due: list[_Program] = []
        self._resolving = False
        self._budget = Budget(_PART, _MOST_S, root=False)
        self._ids, self._texts = np.zeros(0, np.uint64), np.zeros(0, f"S{WIDTH}")
        self._new: dict[int, bytes] = {}

    def feed(self, stacks: np.ndarray) -> None:
        """Takes call stacks (``agent.probes.limiter.STACKS``)."""
        columns = (stacks[name].tolist() for name in ("id", "inode", "device", "library", "places"))
        for number, inode, device, library, offsets in zip(*columns, strict=True):
            program = self._program(inode, device, library)
            if program is None:
                continue
            places = [place for place in offsets if place]
            if number in self._stacks:
                self._stacks.move_to_end(number)
            else:
                self._stacks[number] = one = _Stack(number, program, places)
                self._resolve(one)
        if len(self._stacks) > STACKS:
            self._forget()
        self._ask_next()

    def _forget(self) -> None:
        """Removes the least recently used stacks."""
        self._table()
        for _ in range(_FORGOTTEN):
            self._stacks.popitem(last=False)
        kept = np.isin(self._ids, np.fromiter(self._stacks, np.uint64, len(self._stacks)))
        self._ids, self._texts = self._ids[kept], self._texts[kept]

    def _program(self, inode: int, device: int, number: int) -> _Program | None:
        """The binary's state; number: of its library."""
        library = list(seen())[number]
        for known_device in (device, 0):
            key = key_of_file(inode, known_device, number)
            for one in self._binaries.values():
                if one.key == key and one.library == library:
                    known = self._programs.get(key)
                    if known is None or known.binary is not one:
                        self._programs = {k: p for k, p in self._programs.items() if p.binary.file >= 0}
                        known = self._programs[key] = _Program(one)
                    return known
        return None

    def _resolve(self, one: _Stack) -> None:
        """Names the stack, or requests the analysis of its unknown callers."""
        if one.name:
            return None
        callers: list[list[Any]] = []
        for place in one.places:
            there = one.program.callers.get(place)
            if there is None:
                break
            callers += there
            found = site(callers, one.program.binary.packages, one.program.binary.modules)
            if found is not None and found.outside:
                return self._call(one, found)
        else:
            return self._call(one, site(callers, one.program.binary.packages, one.program.binary.modules))
        if one.program.binary.file < 0:
            return self._call(one, None)
        if one.program not in self._due:
            self._due.append(one.program)
        return None

    def _call(self, one: _Stack, where: CallSite | None) -> None:
        binary = one.program.binary
        program = binary.program or binary.path.removesuffix(" (deleted)").rpartition("/")[2]
        limiter = seen()[binary.library].limiter
        own = declared(binary.library)
        one.name = self._names.called(limiter) if own else self._names.of(program, limiter, where)
        if where is not None and one.name not in one.program.sites:
            if len(one.program.sites) >= SITES:
                one.name = one.name if own else self._names.of(program, limiter, None)
            else:
                one.program.sites[one.name] = where
        one.places = []
        self._new[one.number] = one.name

    def _ask_next(self) -> None:
        """Sends one request at a time."""
        if self._resolving:
            return
        now_ns = time.monotonic_ns()
        ready = next((one for one in self._due if self._budget.left(one.binary.uid, now_ns) > 0), None)
        if ready is None:
            return
        self._due.remove(ready)
        self._resolving = True
        run(self._resolve_callers(ready), lambda _, error: self._answered(ready, error))

    def _resolve_callers(self, program: _Program) -> Steps[None]:
        wanted: list[int] = []
        for one in self._stacks.values():
            if one.program is program and not one.name:
                wanted += [place for place in one.places if place not in program.callers and place not in wanted]
            if len(wanted) >= _RESOLVED:
                break
        wanted = wanted[:_RESOLVED]
        if not wanted or program.binary.file < 0:
            return
        try:
            callers = yield self._analyzers.analyze("callers", [program.binary.file], offsets=wanted)
        except AnalysisFailed:
            callers = []
        if sum(len(known.callers) for known in self._programs.values()) + len(wanted) > PLACES:
            for known in self._programs.values():
                known.callers.clear()
        for at, place in enumerate(wanted):
            program.callers[place] = callers[at] if at < len(callers) else []
        self._budget.spend(program.binary.uid, self._analyzers.took_s, time.monotonic_ns())

    def _answered(self, program: _Program, error: Exception | None) -> None:
        self._resolving = False
        for one in self._stacks.values():
            if one.program is program:
                if error is None:
                    self._resolve(one)
                elif not one.name:
                    self._call(one, None)
        self._ask_next()

    def known(self, records: np.ndarray) -> np.ndarray:
        """Which decisions have known limiter names, bool (n,)."""
        ids, _ = self._table()
        at = np.minimum(np.searchsorted(ids, records["stack"]), max(len(ids) - 1, 0))
        return ids[at] == records["stack"] if len(ids) else np.zeros(len(records), np.bool_)

    def called(self, records: np.ndarray) -> np.ndarray:
        """The limiters' ids, S (n,)."""
        ids, texts = self._table()
        if not len(ids):
            return unnamed(records)
        at = np.minimum(np.searchsorted(ids, records["stack"]), len(ids) - 1)
        known = ids[at] == records["stack"]
        if known.all():
            return np.asarray(texts[at])
        out = unnamed(records)
        out[known] = texts[at[known]]
        return out

    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of named stacks, in order; their names)."""
        if self._new:
            numbers = np.array(sorted(self._new), np.uint64)
            at = np.searchsorted(self._ids, numbers)
            self._texts = np.insert(self._texts, at, np.array([self._new[n] for n in numbers.tolist()], f"S{WIDTH}"))
            self._ids = np.insert(self._ids, at, numbers)
            self._new = {}
        return self._ids, self._texts

    def pending(self, now_ns: int) -> bool:
        """Whether stacks are to be resolved."""
        return bool(self._resolving or self._due)

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self._resolving:
            self._analyzers.pump()
        if self._due:
            self._ask_next()
        for program in self._programs.values():
            for name, where in program.sites.items():
                if now_ns - program.reported_ns.get(name, -_AGAIN_NS) >= _AGAIN_NS:
                    program.reported_ns[name] = now_ns
                    yield _row(name, where, program.binary, now_ns)

    def close(self) -> None:
        """Nothing to close."""


def _row(name: bytes, where: CallSite, binary: Binary, now_ns: int) -> Batch:
    return make(
        "limiter",
        1,
        t_ns=now_ns,
        limiter_id=name,
        program=binary.program.encode()[:48],
        path=binary.path.encode()[:128],
        build_id=binary.build_id.encode()[:48],
        library=binary.library.encode()[:48],
        library_version=binary.library_version.encode()[:24],
        site=where.function.encode()[:160],
        file=where.file.encode()[:96],
        line=where.line or NULL_I64,
    )
