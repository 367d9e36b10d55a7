"""Offers the libraries of images (overlays, bind mounts) when these are mounted, before the first program in them
starts.

Uprobes belong to an inode, so they go to the layers' own files, which all containers of an image share. They do not go
through the image's mount, which can be unmounted at any time. A layer is scanned once while it is mounted. Only mounts
that root alone can make are scanned.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from agent.kernel.limits import LAYERS, LAYERS_A_SECOND, MOUNTS_PAUSE, MOUNTS_PAUSE_S, TRIES
from agent.kernel.steps import BlockedError, run
from agent.targets.asked import HOST, FileId
from agent.targets.roots import libraries

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kernel.steps import Steps, Wait
    from agent.targets.files import Files
    from agent.targets.mounts import Layer, MountWatch


class Images:
    """opening: of the helper; pause: a wait for the next round of the loop."""

    def __init__(self, watch: MountWatch, opening: Callable[[int, str], Wait], files: Files, pause: Wait) -> None:
        self._watch, self._opening, self._files, self._pause = watch, opening, files, pause
        self._known: dict[Layer, set[FileId]] = {}
        self._queue: deque[Layer] = deque()
        self._read_s = self._second_s = 0.0
        self._begun = 0
        self._tries: Counter[Layer] = Counter()
        self.passing = watch.passing
        self.fds, self.close = watch.fds, watch.close
        files.overlaid = watch.overlaid

    def due_s(self) -> float:
        """When there is work, time.monotonic(); infinity if none is known."""
        reading = self._read_s if self._watch.changed() else float("inf")
        scanning = self._second_s + (self._begun >= LAYERS_A_SECOND) if self._queue else float("inf")
        return min(reading, scanning)

    def read_mounts(self) -> None:
        """Reads the mounts to the end, before the first file is offered, so that files of overlays are recognised."""
        run(self._read(lambda done: done(None, None)), lambda *_: None)

    def work(self) -> Steps[None]:
        """One piece of due work: reads the mounts or scans one layer."""
        now_s = time.monotonic()
        if self._watch.changed() and self._read_s <= now_s:
            yield from self._read(self._pause)
            return
        if now_s - self._second_s >= 1:
            self._second_s, self._begun = now_s, 0
        if self._queue and self._begun < LAYERS_A_SECOND:
            self._begun += 1
            yield from self._begin_scan(self._queue.popleft())

    def used(self) -> set[FileId]:
        """Files of mounted layers; the other layers are forgotten."""
        mounted = self._watch.mounted()
        self._known = {layer: files for layer, files in self._known.items() if layer in mounted}
        self._tries = Counter({layer: n for layer, n in self._tries.items() if layer in self._known})
        return set[FileId]().union(*self._known.values())

    def _read(self, pause: Wait) -> Steps[None]:
        begun_s = time.monotonic()
        for layer in (yield from self._watch.read(pause)):
            if layer not in self._known and len(self._known) < LAYERS:
                self._known[layer] = set()
                self._queue.append(layer)
        end_s = time.monotonic()
        self._read_s = end_s + MOUNTS_PAUSE_S + MOUNTS_PAUSE * (end_s - begun_s)

    def _begin_scan(self, layer: Layer) -> Steps[None]:
        def opening(what: str) -> Wait:
            return self._opening(self._watch.pid, f"below:{layer.folder}\0{what}")

        names = tuple(name for _, request in self._files.libraries for name in request.names)
        try:
            paths = yield from libraries(opening, self._files.matching, names)
            elsewhere = [
                b"/usr" + path for path in paths if path.startswith(b"/lib")
            ]  # where /lib is a link, its target lies in another layer
            for path in dict.fromkeys([*paths, *elsewhere]):
                yield from self._offer(layer, path, opening)
            if any(map(self._files.wanting, self._known.get(layer, ()))):
                self._again(layer)
        except TimeoutError as error:
            self._again(layer, counts=not isinstance(error, BlockedError))
            raise

    def _again(self, layer: Layer, counts: bool = True) -> None:
        self._tries[layer] += counts
        if self._tries[layer] < TRIES:
            self._queue.append(layer)

    def _offer(self, layer: Layer, path: bytes, opening: Callable[[str], Wait]) -> Steps[None]:
        requests, fds = self._files.matching(path), list[int]()
        beside = [path.replace(*request.companion) for request in requests if request.companion]
        try:
            for one in (path, *beside):
                try:
                    fds.append((yield opening(f"root:{os.fsdecode(one)}")))
                except TimeoutError:
                    raise
                except OSError:  # most of the usual paths do not exist
                    if not fds:
                        return
            file = yield from self._files.offer(
                HOST, f"{layer.folder}{os.fsdecode(path)}", fds[0], fds[1:], requests, layer=layer.shared
            )
            if layer in self._known:
                self._known[layer].add(file)
        finally:
            for fd in fds:
                os.close(fd)
