"""Attaches and removes the limiter probes of a Go binary, and gives the kernel's side its data."""

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
from agent.kernel.loaded_families import Family
from agent.kernel.steps import Steps
from agent.kernel.wire_structs import Wire
from agent.targets.attacher import Attacher


class GoProbes:
    """binaries: all known ones."""

    def __init__(self, family: Family, wire: Wire, helper: Attacher, binaries: Mapping[Any, Binary]) -> None:
        self._family, self._helper, self._binaries = family, helper, binaries
        self._returning = {program.function for program in family.probe.programs if program.kind == "uretprobe"}
        self._value = wire.dtype("limiter_binary")

    def attach(self, one: Binary) -> Steps[None]:
        """Attaches all probes of a binary. Raises OSError, with none attached."""
        file, one.attaching = os.dup(one.file), True  # the request may outlive the binary's own descriptor
        self.publish(one, 0)  # decisions while only some are attached are left out
        one.asked_ns, one.hits_asked, one.due_ns = boot_ns(), one.hits, 0
        try:
            for program, offsets in one.sites:
                links = yield from self._helper.attaching(
                    self._family.programs[program], file, offsets, program in self._returning
                )
                if one.file < 0:  # released meanwhile
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
        """Gives the kernel's side the binary's data, and takes its count of hits."""
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
        """The kernel's entry, zeroes if there is none. Raises OSError."""
        raw = bpf.lookup(self._family.maps["limiter_binaries"], one.key, self._value.itemsize)
        return np.frombuffer(raw or bytes(self._value.itemsize), self._value).copy()

    def hits(self, one: Binary) -> int:
        """Hits of all its probes so far."""
        with contextlib.suppress(OSError):
            return int(self._read(one)["hits"][0])
        return one.hits

    def detach(self, one: Binary) -> None:
        """Removes the probes, outside of the loop."""
        if one.links:
            self.publish(one, 0)
            one.closing = close_aside(one.links)
            one.links = []
