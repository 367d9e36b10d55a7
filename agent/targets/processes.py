"""What processes use: their executables and libraries, opened by the privileged helper and offered to the requests.
``targets.py`` decides when a process is scanned.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from agent.common.printable import printable
from agent.kernel.limits import ALL_FILES_A_PROCESS, FILES_A_PROCESS, MAPPINGS_A_FILE
from agent.kernel.opening import MAPS_BYTES
from agent.kernel.steps import Steps, Wait
from agent.targets.asked import FileId, Owner, ProbeRequest
from agent.targets.files import Files
from agent.targets.images import Images
from agent.targets.maps import LIBRARY, Mapping, collect, companion, line_pattern, pieces
from agent.targets.roots import Root, Roots, libraries
from agent.targets.unprobed import UnprobedProgram, UnprobedPrograms

if TYPE_CHECKING:
    import re

    from agent.targets.attacher import Attacher


class Process(NamedTuple):
    """size: as in /proc/PID/statm; it changes when the process maps something. exe and used: files."""

    size: bytes
    exe: list[FileId]
    used: set[FileId]


@dataclass(eq=False)
class ProcessScan:
    """A scan in progress. spent_s: time to charge to the owner. reported: (probe, path) of what the scan left out."""

    owner: Owner
    spent_s: float = 0.0
    reported: set[tuple[str, str]] = field(default_factory=set)


_NEW = Process(b"0", [], set())


class Processes:
    """What is known of each process, and the scan of one. pause: a wait for the next round of the loop, between pieces
    of long work.
    """

    def __init__(
        self,
        helper: Attacher,
        files: Files,
        images: Images,
        roots: Roots,
        unprobed_programs: UnprobedPrograms,
        pause: Wait,
    ) -> None:
        self._helper, self._files, self._images, self._roots, self._unprobed, self._pause = (
            helper,
            files,
            images,
            roots,
            unprobed_programs,
            pause,
        )
        self._pattern: re.Pattern[bytes] | None = None
        self._any = line_pattern([LIBRARY])
        self._mappings: dict[tuple[bytes, bytes, bytes], FileId] = {}
        self._known: dict[int, Process] = {}
        self._reported: dict[int, set[tuple[str, str]]] = {}

    def library(self, pattern: bytes, request: ProbeRequest) -> None:
        """Requests shared libraries with a file name that matches ``pattern`` as a whole."""
        self._files.libraries.append((pattern, request))
        self._pattern = line_pattern(p for p, _ in self._files.libraries)

    def of(self, pid: int) -> Process:
        return self._known.get(pid, _NEW)

    def forget(self, pid: int) -> None:
        self._known.pop(pid, None)

    def keep(self, pids: set[int]) -> None:
        """Forgets all other processes."""
        for gone in self._known.keys() - pids:
            del self._known[gone]

    def scan_process(self, scan: ProcessScan, known: Process, size: bytes, full: bool) -> Steps[None]:
        """Offers the executable and the libraries of the process."""
        pid, exe = scan.owner.pid, known.exe
        if self._files.executables and (full or not exe):
            exe = yield from self._open(scan, ["exe"], b"", self._files.executables, b"")
        used = set(exe)
        self._known[pid] = Process(size, exe, used)
        if self._pattern is not None or self._files.mapped:
            yield from self._libraries(scan, used)

    def scanned(self, scan: ProcessScan, known: Process, error: Exception | None) -> None:
        """After an error the next scan repeats the process; until then its earlier files count as used."""
        pid, reported = scan.owner.pid, self._reported.pop(scan.owner.pid, set())
        if error is not None and (now := self._known.get(pid)):
            self._known[pid] = now._replace(size=b"0", used=now.used | known.used)
        for one in reported - scan.reported:
            self._unprobed.forget(*one)
        if scan.reported:
            self._reported[pid] = scan.reported

    def offer_root(self, scan: ProcessScan, root: Root) -> Steps[None]:
        """Offers the libraries of a root that this process is the first program in. Missing files are no failure: most
        of the usual paths do not exist.
        """
        names = tuple(name for _, request in self._files.libraries for name in request.names)
        try:
            paths = yield from libraries(partial(self._helper.opening, scan.owner.pid), self._files.matching, names)
            for path in paths:
                requests = self._files.matching(path)
                for file in (
                    yield from self._open(scan, [f"root:{os.fsdecode(path)}"], path, requests, b"", counted=False)
                ):
                    if file.device and not self._images.passing(
                        file.device
                    ):  # a layer's file counts as used while the layer is mounted
                        self._roots.keep(root, file)
        except OSError:
            self._roots.forget(root)
            raise
        if not os.path.exists(f"/proc/{scan.owner.pid}"):  # it ended meanwhile: the next program is the first
            self._roots.forget(root)

    def release_unused(self) -> None:
        """Releases files that no process used in two full scans in a row. Processes whose files did not get all their
        probes are scanned again.
        """
        self._files.release_unused(
            self._roots.used().union(self._images.used(), *(process.used for process in self._known.values()))
        )
        self._known = {
            pid: p._replace(size=b"0") if any(map(self._files.wanting, p.used)) else p for pid, p in self._known.items()
        }
        self._mappings = {m: file for m, file in self._mappings.items() if self._files.known(file)}
        for pid in self._reported.keys() - self._known.keys():
            for probe, shown in self._reported.pop(pid):
                self._unprobed.forget(probe, shown)

    def _libraries(self, scan: ProcessScan, used: set[FileId]) -> Steps[None]:
        more = [request for where, request in self._files.mapped if where(scan.owner.pid)]
        pattern = self._any if more else self._pattern
        if pattern is None:
            return
        fd = yield self._helper.opening(scan.owner.pid, "maps")
        with open(fd, "rb") as maps:
            text = maps.read(MAPS_BYTES)
        found: dict[tuple[bytes, bytes, bytes], Mapping] = {}
        for number, piece in enumerate(pieces(text)):
            if number:
                yield self._pause
            collect(found, pattern, piece)
        if len(text) == MAPS_BYTES:
            self._report(
                scan,
                "its mappings",
                f"has more than {MAPS_BYTES >> 20} MB of mappings: the rest is not scanned",
            )
        most = ALL_FILES_A_PROCESS if more else FILES_A_PROCESS
        asked_first = sorted(found.items(), key=lambda its: not self._files.matching(its[1].plain))
        for key, mapping in asked_first[:most]:
            if key not in self._mappings or self._files.wanting(self._mappings[key], scan.owner):
                if mapping.times > MAPPINGS_A_FILE:
                    self._report(
                        scan,
                        mapping.plain,
                        f"one process maps it {mapping.times} times: a file with more than {MAPPINGS_A_FILE} mappings"
                        " gets no probes",
                    )
                    continue
                for file in (
                    yield from self._open(
                        scan, mapping.paths, mapping.plain, [*self._files.matching(mapping.plain), *more], text
                    )
                ):
                    self._mappings[key] = file
            if key in self._mappings:
                used.add(self._mappings[key])
        if len(found) > most:
            self._report(
                scan,
                f"{len(found)} libraries",
                f"maps more libraries than are scanned in one process ({most})",
            )

    def _open(
        self,
        scan: ProcessScan,
        paths: list[str],
        path: bytes,
        requests: list[ProbeRequest],
        text: bytes,
        counted: bool = True,
    ) -> Steps[list[FileId]]:
        """The opened file's identity, in a list; empty where it could not be opened."""
        for what in paths:
            try:
                fd = yield self._helper.opening(scan.owner.pid, what)
            except (TimeoutError, BrokenPipeError):
                raise
            except OSError as error:
                if counted:
                    self._files.count(error)
                continue
            others: list[int] = []
            try:
                for stem, other in filter(None, (request.companion for request in requests)):
                    beside = companion(text, path, stem, other)
                    try:
                        others.append((yield self._helper.opening(scan.owner.pid, f"root:{os.fsdecode(beside)}")))
                    except (TimeoutError, BrokenPipeError):
                        raise
                    except OSError:  # then the version comes from the file name
                        continue
                shown = os.fsdecode(path) or link_of(fd)
                return [(yield from self._files.offer(scan.owner, shown, fd, others, requests))]
            finally:
                for one in (fd, *others):
                    os.close(one)
        return []

    def _report(self, scan: ProcessScan, what: bytes | str, reason: str) -> None:
        probe, shown = f"process:{printable(scan.owner.comm)}", printable(f"{os.fsdecode(what)} ({scan.owner})")
        self._unprobed.report(UnprobedProgram(probe, shown, "degraded", reason, "see docs/limits.md", scan.owner.uid))
        scan.reported.add((probe, shown))


def link_of(fd: int) -> str:
    """The path of a descriptor, empty where there is none."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
