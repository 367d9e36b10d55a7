"""Loads probe families for real and collects what they produce."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from agent.contracts import Source
from agent.instruments.limiters import named
from agent.kernel import bpf
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Loaded, load, release
from agent.kernel.probe import Parts
from agent.kernel.sampling import SamplingWindow
from agent.probes import discover
from agent.probes.tcp import setup as set_up_tcp
from agent.probes.unix import setup as set_up_unix
from agent.tables import TABLES
from tests.kernel.limiter_rig import Watch
from tests.kernel.local_attach import LocalAttacher
from tests.patience import PATIENCE


class Attached:
    """Attached families and every row they have produced so far."""

    def __init__(self, names: tuple[str, ...], options: dict[str, int] | None = None) -> None:
        known = discover()
        self.loaded: Loaded = load([known[name] for name in names], options or {})
        for family in self.loaded.families.values():
            assert family.state == "attached", family.reason
        self.source = KernelSource(self.loaded, interval_ns=200_000_000)
        self.window = SamplingWindow(LocalAttacher(), 20_000_000)  # type: ignore[arg-type]
        self.source.hold = lambda: self.window.busy
        self.extra: list[Source] = [self.window]
        if tcp := self.loaded.families.get("tcp"):
            self.extra += set_up_tcp(tcp, self.source, None, None, Parts(window=self.window))
        if unix := self.loaded.families.get("unix"):
            self.extra += set_up_unix(unix, self.source, None, None, Parts())
        self._rows: dict[str, list[np.ndarray]] = {}

    def close(self) -> None:
        """Detaches all, whichever source fails to end."""
        with ExitStack() as ends:
            ends.callback(release, self.loaded)
            for source in [self.source, *reversed(self.extra)]:
                ends.callback(source.close)

    def pump(self) -> None:
        for source in [self.source, *self.extra]:
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                self._rows.setdefault(batch.table, []).append(batch.rows)

    def rows(self, table: str) -> np.ndarray:
        return np.concatenate([TABLES[table].empty(0), *self._rows.get(table, [])])

    def wait(
        self,
        table: str,
        pick: Callable[[np.ndarray], np.ndarray],
        enough: Callable[[np.ndarray], bool],
        limit_s: float = 5,
    ) -> np.ndarray:
        """Drains until enough(pick(rows of table)), and one interval longer so that a surplus shows; or for limit_s."""
        end = time.monotonic() + limit_s * PATIENCE
        settled = None
        while time.monotonic() < end and (settled is None or time.monotonic() < settled):
            self.pump()
            if settled is None and enough(pick(self.rows(table))):
                settled = time.monotonic() + 0.5
            time.sleep(0.01)
        return pick(self.rows(table))

    def lost(self) -> int:
        self.pump()
        return int(self.rows("loss")["count"].sum())

    def left_out(self) -> int:
        """Runs of programs that the kernel left out, as the newest (7.2) may: for each, something may be missing."""
        return sum(
            bpf.program_stats(fd)[2] for family in self.loaded.families.values() for fd in family.programs.values()
        )


@pytest.fixture
def attach() -> Iterator[Callable[..., Attached]]:
    """attach("tcp", ...) loads and attaches families until the end of the test."""
    with ExitStack() as ends:

        def start(*names: str, options: dict[str, int] | None = None) -> Attached:
            one = Attached(names, options)
            ends.callback(one.close)
            return one

        yield start


@pytest.fixture
def watch(attach: Callable[..., Attached], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watch]]:
    """watch() attaches the limiter family to every Go program with a library until the end of the test."""
    monkeypatch.setattr(named, "HELD_NS", int(named.HELD_NS * PATIENCE))
    with ExitStack() as ends:

        def start(**more: Any) -> Watch:
            one = Watch(attach, **more)
            ends.callback(one.close)
            return one

        yield start
