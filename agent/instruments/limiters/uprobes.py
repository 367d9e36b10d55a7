"""Turns the limiter probes of a Go binary on and off, and tells the kernel's side what it needs to know of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from agent.common.clocks import boot_ns
from agent.instruments.limiters.binary import Binary
from agent.kernel import bpf
from agent.kernel.detach import close_aside
from agent.kernel.load import Family
from agent.kernel.steps import Steps
from agent.kernel.wire import Wire
from agent.targets.attacher import Attacher


class GoProbes:
    """binaries: all that are known."""

    def __init__(self, family: Family, wire: Wire, helper: Attacher, binaries: Mapping[Any, Binary]) -> None:
        self._family, self._helper, self._binaries = family, helper, binaries
        self._returning = {program.function for program in family.probe.programs if program.kind == "uretprobe"}
        self._value = wire.dtype("limiter_binary")

    def attach(self, one: Binary) -> Steps[None]:
        """Attaches all probes of a binary. Raises OSError, with none attached."""
        file, one.attaching = os.dup(one.file), True  # the request may wait for longer than the binary keeps its own
        self.publish(one, 0)  # what is decided while some of them are there is left out
        one.asked_ns, one.hits_asked, one.due_ns = boot_ns(), one.hits, 0
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
            self.detach(one)
            raise
        finally:
            os.close(file)
            one.attaching = False
        one.since_ns = boot_ns()
        self.publish(one, one.schedule.every if one.sampled else 1)
        one.since_ns = one.sampled_ns = boot_ns()

    def publish(self, one: Binary, every: int) -> None:
        """Tells the kernel's side what it needs to know of the binary, and takes its count of hits."""
        shared = [b for b in self._binaries.values() if b.key == one.key and b.library_version != one.library_version]
        try:
            value = self._read(one)
            one.hits = int(value["hits"][0])
            value["every"], value["since_ns"], value["number"] = every, one.since_ns, one.number
            value["library_version"] = b"" if shared else one.library_version.encode()
            bpf.update(self._family.maps["limiter_binaries"], one.key, value.tobytes())
        except OSError as error:  # kernels before 5.19 without CAP_BPF
            one.state, one.reason, one.measured = (
                "degraded",
                f"the library's version is not shown and the cost not bounded: {error}",
                False,
            )

    def _read(self, one: Binary) -> np.ndarray:
        """What the kernel's side has of it, zeroes before it has something. Raises OSError."""
        raw = bpf.lookup(self._family.maps["limiter_binaries"], one.key, self._value.itemsize)
        return np.frombuffer(raw or bytes(self._value.itemsize), self._value).copy()

    def hits(self, one: Binary) -> int:
        """Of all of its probes so far."""
        with contextlib.suppress(OSError):
            return int(self._read(one)["hits"][0])
        return one.hits

    def detach(self, one: Binary) -> None:
        """Takes the probes away, beside the loop."""
        if one.links:
            self.publish(one, 0)
            one.closing = close_aside(one.links)
            one.links = []
