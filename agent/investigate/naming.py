"""Finds the names of the functions on stacks. It works in steps, since the helper opens other users' files and only the
ELF analyzer reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.investigate.asleep import Asleep, parse
from agent.investigate.stacks import CodePlace, places
from agent.kernel.helper_client import Helper
from agent.kernel.opening import MAPS_BYTES
from agent.kernel.steps import Steps
from agent.targets.analyzer_pool import AnalysisFailed, AnalyzerPool

#: Files of one process whose symbols are read; addresses in one question.
FILES, MOST = 8, 512


@dataclass
class StackNames:
    """kernel: by address; user and places: by process and address. asleep: threads that slept all the time. reasons:
    why names are missing.
    """

    kernel: dict[int, str] = field(default_factory=dict)
    user: dict[int, dict[int, str]] = field(default_factory=dict)
    places: dict[int, dict[int, CodePlace]] = field(default_factory=dict)
    asleep: list[Asleep] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class Naming:
    """kallsyms: a descriptor of /proc/kallsyms, opened by root; -1 if there is none."""

    def __init__(self, helper: Helper, analyzers: AnalyzerPool, kallsyms: int) -> None:
        self._helper, self._analyzers, self._kallsyms = helper, analyzers, kallsyms

    def names_of(
        self, kernel: Iterable[int], user: Mapping[int, Iterable[int]], switched: Mapping[int, set[int]]
    ) -> Steps[StackNames]:
        """kernel: addresses; user: by process; switched: for the processes whose sleeping threads are wanted, the
        threads that were switched meanwhile.
        """
        out = StackNames()
        for pid, tids in switched.items():
            out.asleep += yield from self._asleep(pid, tids)
        wanted = sorted(set(kernel))[:MOST]
        if wanted and self._kallsyms >= 0:
            try:
                found = yield self._analyzers.analyze("kernel functions at", [self._kallsyms], addresses=wanted)
                out.kernel = dict(zip(wanted, found, strict=True))
            except (OSError, AnalysisFailed) as error:
                out.reasons.append(f"kernel symbols: {error}")
        for pid, addresses in user.items():
            try:
                yield from self._of_process(pid, addresses, out)
            except OSError as error:
                out.reasons.append(f"symbols of pid {pid}: {error.strerror or error}")
        return out

    def threads(self, pid: int, tid: int = 0) -> Steps[bytes]:
        """The helper's lines about the sleeping threads of a process, or about one thread; empty if it has ended."""
        try:
            return (yield from self._text(pid, f"asleep:{tid}" if tid else "asleep"))
        except OSError:
            return b""

    def _asleep(self, pid: int, tids: set[int]) -> Steps[list[Asleep]]:
        return parse(pid, (yield from self.threads(pid)), tids)

    def _text(self, pid: int, what: str) -> Steps[bytes]:
        fd = yield self._helper.opening(pid, what)
        try:
            return os.pread(fd, MAPS_BYTES, 0)
        finally:
            os.close(fd)

    def _of_process(self, pid: int, addresses: Iterable[int], out: StackNames) -> Steps[None]:
        out.places[pid], out.user[pid] = places((yield from self._text(pid, "maps")), addresses), {}
        files: dict[str, dict[int, CodePlace]] = {}
        for at, place in out.places[pid].items():
            if place.path.startswith("/"):
                files.setdefault(place.path, {})[at] = place
        most = sorted(files, key=lambda path: -len(files[path]))[:FILES]
        for path in most:
            its = dict(list(files[path].items())[:MOST])
            try:
                fd = yield self._helper.opening(pid, f"map:{next(iter(its.values())).span}")
            except OSError as error:
                out.reasons.append(f"{path}: {error.strerror or error}")
                continue
            try:
                names = yield self._analyzers.analyze(
                    "functions at", [fd], offsets=[place.offset for place in its.values()]
                )
                out.user[pid].update(zip(its, names, strict=True))
            except (OSError, AnalysisFailed) as error:
                out.reasons.append(f"{path}: {error}")
            finally:
                os.close(fd)
