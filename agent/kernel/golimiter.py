"""Attaches the limiter family's uprobes to Go binaries, keeps what is known of each, and holds their cost to a budget.

A binary is attached once, by inode: every process that runs it is then seen from its first instruction. Decisions count from when
all its probes are attached to when the first is taken away, so that what is under way meanwhile is left out rather than half seen.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from agent.batch import Batch, make
from agent.errors import printable
from agent.kernel import bpf
from agent.kernel.elf import X86_64, ElfError
from agent.kernel.gosym import Function, GoBinary
from agent.kernel.load import Family
from agent.kernel.ring import SharedArray
from agent.kernel.targets import Attacher
from agent.kernel.wire import Wire
from agent.tables import TABLES

MODULE = "golang.org/x/time"
_PACKAGE = b"golang.org/x/time/rate.(*Limiter)."
RESERVE, WAIT = _PACKAGE + b"reserveN", _PACKAGE + b"wait"
#: A pair of programs for each function: at its entry and at its returns.
PROGRAMS = {b"reserveN": ("limiter_reserve", "limiter_reserved"), b"wait": ("limiter_wait", "limiter_waited")}
REGISTER_ABI_MINOR = 17
#: Limiter's first fields were in another order until 2020.
_OLD_LAYOUT = re.compile(r"v0\.0\.0-(201\d|2020(0[1-5]))")
_CHECK_NS = 1_000_000_000
#: What a function with a frame starts with (cmd/internal/obj/x86, stacksplit): CMPQ SP, 16(R14), or LEAQ -n(SP), R12 for a large one.
_PROLOGUES = (b"\x49\x3b\x66\x10", b"\x4c\x8d\x64\x24", b"\x4c\x8d\xa4\x24")
_HITS_A_DECISION, _LEAST_EVERY, _MOST_EVERY, _CALM = 2, 2, 60, 0.5


@dataclass
class Binary:
    """A Go binary that contains the package, or might.

    state, reason and remedy as in probe_status; sites: (program, file offsets); file: our descriptor of it while it is attached;
    measured: its hits can be counted; every: 1 watched always, k one second in k; turned_ns: when its probes were last turned off.
    """

    path: str
    inode: int
    state: str = "attached"
    reason: str = ""
    remedy: str = ""
    go_version: str = ""
    library_version: str = ""
    sites: list[tuple[str, list[int]]] = field(default_factory=list)
    file: int = -1
    links: list[int] = field(default_factory=list)
    closing: threading.Thread | None = None
    measured: bool = True
    every: int = 1
    since_ns: int = 0
    decisions: int = 0
    turned_ns: int = 0


def examine(fd: int, path: str = "") -> Binary | None:
    """What can be attached in an executable file; None where it is no Go binary or does not contain the package.

    A Go binary that cannot be probed with certainty comes back ``unavailable`` with the reason. Raises OSError.
    """
    one = Binary(path, os.fstat(fd).st_ino)
    try:
        binary = GoBinary(fd)
        if binary.build is None:
            return None
        one.go_version = binary.build.go_version
        one.library_version = binary.build.modules.get(MODULE, "")
        found = binary.functions([RESERVE, WAIT])
        if not found:
            return None
        _refuse(binary, one)
        if one.state == "attached":
            _place(binary, found, one)
    except ElfError as error:
        if not one.go_version:
            return None
        one.state, one.reason = "unavailable", str(error)
    return one


def _refuse(binary: GoBinary, one: Binary) -> None:
    """Sets the reason where the registers or the struct are not the known ones."""
    minor = binary.build.minor if binary.build else None
    if binary.machine != X86_64:
        one.reason = "limiter probes are made for x86-64 only"
    elif minor is None or minor < REGISTER_ABI_MINOR or "noregabi" in one.go_version:
        one.reason = f"built by {one.go_version or 'an unknown Go'}: calls pass arguments in registers only since go1.{REGISTER_ABI_MINOR}"
    elif _OLD_LAYOUT.match(one.library_version):
        one.reason = f"{MODULE} {one.library_version} has another struct layout"
    if one.reason:
        one.state, one.remedy = "unavailable", "rebuild the program with a current Go and a current golang.org/x/time"


def _place(binary: GoBinary, found: list[Function], one: Binary) -> None:
    """Works out the file offsets. Without wait's, Wait's early refusals are missed, no more."""
    for function in sorted(found, key=lambda f: f.name.endswith("wait")):
        entry, returns = PROGRAMS[function.name.rpartition(".")[2].encode()]
        try:
            if not binary.read(function.entry, 4).startswith(_PROLOGUES):
                raise ElfError("it does not begin as the Go compiler begins a function")
            places = [binary.file_offset(at) for at in binary.returns(function)]
        except ElfError as error:
            if entry == "limiter_reserve":
                raise
            one.state, one.reason = "degraded", f"waits that are refused early are not seen: {error}"
            continue
        one.sites += [(entry, [binary.file_offset(function.entry)]), (returns, places)]
    if not any(program == "limiter_reserve" for program, _ in one.sites):
        raise ElfError("reserveN is not there: probably inlined by profile-guided optimisation")


class GoLimiters:
    """Implements ``agent.batch.Source``: rows of probe_status for each binary, and losses of the family's own.

    budget: uprobe hits a second and binary (two a decision, four a Wait); a binary over it is watched one second in ``every``.
    ``found`` is what ``Targets.exe`` calls. ``binaries`` holds what is known, by (device, inode).
    """

    name = "limiter"

    def __init__(self, family: Family, wire: Wire, helper: Attacher, budget: int) -> None:
        self.binaries: dict[tuple[int, int], Binary] = {}
        self._family, self._helper, self._budget = family, helper, budget
        self._value = wire.dtype("limiter_binary")
        self._counts = SharedArray(family.maps["limiter_counts"], wire.dtype("limiter_counts")).values
        self._news: list[Binary] = []
        self._closing: list[threading.Thread] = []
        self._unmatched = 0
        self._checked_ns = 0

    @property
    def orphans(self) -> int:
        """Decisions that began and never ended."""
        return int(self._counts["orphans"][0])

    def found(self, pid: int, path: str, fd: int) -> Callable[[], None] | None:
        """Attaches to an executable where it is one to attach to; returns what lets go of it."""
        del pid
        st = os.fstat(fd)
        one = examine(fd, printable(_path_of(fd) or path))
        if one is None:
            return None
        self.binaries[st.st_dev, st.st_ino] = one
        self._news.append(one)
        if one.state != "unavailable":
            one.file = os.dup(fd)
            self._attach(one, 1)

        def release() -> None:
            self._let_go(one)
            self.binaries.pop((st.st_dev, st.st_ino), None)
            with contextlib.suppress(OSError):  # kernels before 5.19 did not let us write it either
                bpf.delete(self._family.maps["limiter_binaries"], one.inode.to_bytes(8, "little"))
            one.state, one.reason, one.remedy = "off", "no process uses it any more", ""
            self._news.append(one)

        return release

    def _attach(self, one: Binary, every: int) -> None:
        """Attaches all probes of a binary; one that is refused makes it unavailable with the reason."""
        program = ""
        try:
            for program, offsets in one.sites:
                one.links += self._helper.attach_uprobe(self._family.programs[program], one.file, offsets)
        except (OSError, KeyError) as error:
            self._detach(one)
            one.state, one.reason = "unavailable", f"attaching {program}: {error}"
            one.remedy = "see `tickscope doctor`"
            return
        one.every, one.since_ns = every, time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._publish(one, every)

    def _publish(self, one: Binary, every: int) -> None:
        """Tells the kernel's side what it needs to know of the binary."""
        value = np.zeros(1, self._value)
        shared = [b for b in self.binaries.values() if b.inode == one.inode and b.library_version != one.library_version]
        value["decisions"], value["every"], value["since_ns"] = one.decisions, every, one.since_ns
        value["library_version"] = b"" if shared else one.library_version.encode()
        try:
            bpf.update(self._family.maps["limiter_binaries"], one.inode.to_bytes(8, "little"), value.tobytes())
        except OSError as error:  # kernels before 5.19 without CAP_BPF
            one.state, one.reason, one.measured = "degraded", f"the library's version is not shown and the cost not bounded: {error}", False

    def _detach(self, one: Binary) -> None:
        """Takes the probes away, in a thread: the kernel waits out a grace period, some 0.1 s, for each."""
        if one.links:
            self._publish(one, 0)
            one.closing = threading.Thread(target=_close_all, args=(one.links,), name="detach")
            one.links = []
            one.closing.start()
            self._closing = [t for t in (*self._closing, one.closing) if t.is_alive()]

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
            yield _status(one, now_ns)
        if now_ns - self._checked_ns >= _CHECK_NS:
            for one in self.binaries.values():
                if one.file >= 0 and one.measured and one.state != "unavailable" and self._checked_ns:
                    self._regulate(one, now_ns, (now_ns - self._checked_ns) / 1e9)
            yield from self._missed(now_ns)
            self._checked_ns = now_ns

    def _regulate(self, one: Binary, now_ns: int, seconds: float) -> None:
        """Once a second: measures a binary's hits, and turns its probes off and on where they are too many."""
        if not one.links:
            if one.closing and one.closing.is_alive():
                one.turned_ns = now_ns
            elif now_ns - one.turned_ns >= (one.every - 1) * _CHECK_NS:
                one.turned_ns = now_ns
                self._attach(one, one.every)
            return
        raw = bpf.lookup(self._family.maps["limiter_binaries"], one.inode.to_bytes(8, "little"), self._value.itemsize)
        total = int(np.frombuffer(raw, self._value)["decisions"][0]) if raw else one.decisions
        rate, one.decisions = (total - one.decisions) * _HITS_A_DECISION / seconds, total
        if rate > self._budget or (one.every > 1 and rate > self._budget * _CALM):
            every = min(max(math.ceil(rate / self._budget), _LEAST_EVERY), _MOST_EVERY)
            if one.every != every:
                one.state, one.reason = "degraded", f"{rate:.0f} hits a second, {self._budget} allowed: watched one second in {every}, rows marked"
                self._news.append(one)
            one.every, one.turned_ns = every, now_ns
            self._detach(one)
        elif one.every > 1:
            one.every, one.state, one.reason = 1, "attached", ""
            self._publish(one, 1)
            self._news.append(one)

    def _missed(self, now_ns: int) -> Iterator[Batch]:
        total = int(self._counts["unmatched"][0])
        if total > self._unmatched:
            stage = TABLES["loss"].code("stage", "kernel")
            yield make("loss", 1, t_ns=now_ns, stage=stage, source=b"limiter_reserving", count=total - self._unmatched,
                       from_ns=self._checked_ns or now_ns, to_ns=now_ns)  # fmt: skip
            self._unmatched = total

    def close(self) -> None:
        """Detaches everywhere, and waits until that is done."""
        for one in self.binaries.values():
            self._let_go(one)
        for thread in self._closing:
            thread.join()


def _close_all(links: list[int]) -> None:
    for link in links:
        os.close(link)


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _status(one: Binary, now_ns: int) -> Batch:
    versions = f"{one.go_version}, {MODULE} {one.library_version or '(version not recorded)'}"
    reason = f"{one.path} ({versions})" + (f": {one.reason}" if one.reason else "")
    name = f"limiter:{one.path.rpartition('/')[2]}"
    return make("probe_status", 1, t_ns=now_ns, probe=name.encode()[:32], state=TABLES["probe_status"].code("state", one.state),
                reason=reason.encode()[:256], remedy=one.remedy.encode()[:160])  # fmt: skip
