"""Tries a declared function on one process: analyzes its file, attaches probes to that process alone, reads decisions.
Root only; needs no agent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from agent.common.alive import gone
from agent.common.printable import printable
from agent.common.settings import Place
from agent.errors import PRIVILEGE, USAGE, AgentError
from agent.limiters.functions.declared import OwnFunction
from agent.limiters.functions.settings import entries, functions, is_shared, matches

_ANALYZED_S, _POLL_S = 30.0, 0.02


class Declarations:
    """The declarations of a file: tickscope.yaml's, a list, or a single one. Raises AgentError for the
    first wrong one.
    """

    def __init__(self, path: Path) -> None:
        from agent.common.settings_file import parse, read_text

        self.path = path
        given, lines = parse(path, read_text(path, required=True))
        keys: tuple[str, ...] = ()
        if isinstance(given, dict) and "limiter_functions" in given:
            given, keys = given["limiter_functions"], ("limiter_functions",)
        elif isinstance(given, dict) and "name" in given:
            given, lines = [given], {(0, *at): n for at, n in lines.items()} | {(0,): 1}
        if not isinstance(given, list) or not given:
            raise AgentError(
                f"{path} declares no function",
                remedy="limiter_functions: and a list of declarations, see docs/limiters-declare.md",
                exit_code=USAGE,
            )
        self._place = Place(keys, str(path), lines)
        kept = entries(given, self._place)
        for one in kept:
            if one.wrong:
                raise AgentError(f"{one.where}: {one.wrong}", remedy=one.remedy, exit_code=USAGE)
        self.functions = functions(kept)

    def where(self, one: OwnFunction, *at: str) -> str:
        """``FILE:LINE`` of a key."""
        return self._place.below(self.functions.index(one), *at).where


class TriedProcess:
    """Files of a running process. Raises AgentError if there is none."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.exe = os.readlink(f"/proc/{pid}/exe")
        except OSError as error:
            raise AgentError(
                f"no program runs as process {pid}",
                why=str(error.strerror),
                remedy="pgrep -f NAME prints the pids of a program",
            ) from error

    def file(self, one: OwnFunction) -> str | None:
        """The path to open for a declared program; None if this process does not run it."""
        if not is_shared(one):
            return f"/proc/{self.pid}/exe" if matches(one, self.exe) else None
        with open(f"/proc/{self.pid}/maps", errors="surrogateescape") as maps:
            for mapping in maps:
                span, _, _, _, inode, *path = mapping.rstrip("\n").split(None, 5)
                if inode != "0" and path and matches(one, path[0]):
                    first, last = (int(end, 16) for end in span.split("-"))
                    return f"/proc/{self.pid}/map_files/{first:x}-{last:x}"
        return None

    @property
    def gone(self) -> bool:
        return gone(self.pid, None)


class Trial:
    """functions: the declared functions that this process has. notes: parts of them that are not observed."""

    def __init__(self, declarations: Declarations, process: TriedProcess) -> None:
        self.process, self.notes = process, list[str]()
        self._all, self._stack = declarations, ExitStack()
        self.functions: list[OwnFunction] = []
        self._known: list[tuple[int, dict[str, Any]]] = []
        files = [(one, process.file(one)) for one in declarations.functions]
        for one, file in files:
            if file is not None:
                self.functions.append(one)
            elif len(files) > 1:
                self.notes.append(
                    f"{declarations.where(one, 'program')}: {one.name} is skipped: process {process.pid} does not run"
                    f" {one.program}"
                )
        if not self.functions:
            one = declarations.functions[0]
            what = (
                f"does not map {one.program}" if is_shared(one) else f"runs {process.exe}, which is not {one.program}"
            )
            raise AgentError(
                f"{declarations.where(one, 'program')}: program: process {process.pid} {what}",
                remedy="the shared library's path in /proc/PID/maps" if is_shared(one) else f"program: {process.exe}",
            )
        self._analyze([(one, file) for one, file in files if file is not None])

    def _analyze(self, files: list[tuple[OwnFunction, str]]) -> None:
        """Analyzes the files in a separate process, as the agent does."""
        from agent.instruments.declared_functions import NAME
        from agent.kernel.steps import pump_until
        from agent.limiters.catalogue import declare, seen
        from agent.limiters.functions.seen import all_seen, arguments_of, own_name
        from agent.targets.analyzer_pool import AnalyzerPool

        declare(all_seen(self._all.functions))
        analyzers = AnalyzerPool(1)
        self._stack.callback(analyzers.close)
        for one, file in files:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, fd)
            answers: list[tuple[Any, Exception | None]] = []
            question = arguments_of(one, seen()[own_name(one.name)].functions[0], is_shared(one))
            analyzers.analyze(NAME, [fd], declared=[question], near=True)(lambda *answer, to=answers: to.append(answer))
            pump_until(lambda of=answers: bool(of), [analyzers], _ANALYZED_S)  # type: ignore[misc]
            facts, error = answers[0] if answers else (None, TimeoutError("its analysis took too long"))
            self._judge(one, fd, facts, error)

    def _judge(self, one: OwnFunction, fd: int, facts: list[dict[str, Any]] | None, error: Exception | None) -> None:
        if error is not None:
            raise AgentError(
                f"{self._all.where(one, 'program')}: {one.name}: {error}", remedy="see docs/limiters-declare.md"
            )
        if not facts:
            raise AgentError(
                f"{self._all.where(one, 'build_id')}: build_id: that of {self.process.exe} is another",
                remedy=f"readelf -n /proc/{self.process.pid}/exe prints it",
            )
        known = facts[0]
        problem = known["facts"]["trouble"] or {"key": "symbol", "near": ()}
        if known["state"] == "unavailable":
            near = [printable(name) for name in problem["near"]]
            raise AgentError(
                f"{self._all.where(one, problem['key'])}: {problem['key']}: {printable(known['reason'])}",
                why=f"there is: {'; '.join(near)}" if near else "",
                remedy=printable(known["remedy"]),
            )
        if known["reason"]:
            self.notes.append(f"{self._all.where(one, problem['key'])}: {printable(known['reason'])}")
        self._known.append((fd, known))

    def attach(self) -> None:
        """Attaches the programs. Raises AgentError if the kernel refuses them."""
        from agent.kernel.attaching import attach_uprobe
        from agent.kernel.kernel_source import KernelSource
        from agent.kernel.loaded_families import load, release
        from agent.probes.limiter import probe

        names = {known["facts"]["library"] for _, known in self._known}
        loaded = load([probe(only=lambda library: library in names)])
        self._stack.callback(release, loaded)
        family = loaded.families["limiter"]
        if family.state != "attached":
            raise AgentError(
                "cannot load the probes",
                why=family.reason,
                remedy=family.remedy or "tickscope doctor",
                exit_code=PRIVILEGE,
            )
        self._kernel, self._family = KernelSource(loaded), family
        self._stack.callback(self._kernel.close)
        self._records: list[np.ndarray] = []
        self._kernel.subscribe("limiter_decisions", self._records.append)
        for fd, known in self._known:  # entry probes last
            attachments = sorted(known["attachments"], key=lambda one: str(one["program"]).endswith("_entered"))
            for one in attachments:
                try:
                    links = attach_uprobe(
                        family.programs[one["program"]], fd, one["offsets"], one["at_return"], self.process.pid
                    )
                except OSError as error:
                    raise AgentError(
                        f"cannot attach to {self.process.exe}",
                        why=str(error.strerror),
                        remedy="tickscope doctor",
                        exit_code=PRIVILEGE,
                    ) from error
                for link in links:
                    self._stack.callback(os.close, link)

    def decisions(self, until: float, stop: Callable[[], bool]) -> Iterator[np.ndarray]:
        """Records of ``struct limiter_decision`` of that process, as they come. Ends when the process ends, and soon
        after ``stop`` returns true.
        """
        while time.monotonic() < until and not stop():
            for _ in self._kernel.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                """Rows are made where they are shown."""
            records, self._records[:] = list(self._records), []
            for some in records:
                if len(selected := some[some["proc"]["pid"] == self.process.pid]):
                    yield selected
            if not records:
                if self.process.gone:
                    return
                time.sleep(_POLL_S)

    def begun(self) -> int:
        """Calls that were entered and whose return was not seen."""
        from agent.kernel.bpf import HashMap, map_info

        fd = self._family.maps["limiter_deciding"]
        key, value = (np.dtype([("raw", f"V{size}")]) for size in map_info(fd)[1:3])
        return len(HashMap(fd, key, value).read()[0])

    def close(self) -> None:
        self._stack.close()
