"""One on-demand profile: attaches programs for a few processes, detaches them, and reads what they counted.

The programs count until ``profile_until_ns`` of the control map, so they do not count on while the agent is stopped.
When the agent ends, the kernel detaches them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from agent.investigate.decide import CALLS_NS
from agent.kernel import bpf
from agent.kernel.helper_client import Helper
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Family
from agent.kernel.sampling import attach

#: The size of ``control.profile_pids``.
MOST_PIDS = 8
#: Bytes of one element of the stack maps; by map, its first stack number and its size (bpf/profile.h, bpf/oncpu.bpf.c).
STACK_BYTES = 32 * 8
STACKS = {"profile_stacks": (0, 1024), "oncpu_stacks": (65536, 2048)}
_GRACE_NS = 50_000_000
#: Pause before another attempt when the helper was too busy.
_RETRY_NS, _BUSY = 20_000_000, "the helper is busy"


@dataclass
class Counted:
    """What a profile counted: keys and values by map. stacks: addresses by number, innermost first. interval_ns: how
    long each family was attached.
    """

    maps: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    stacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    interval_ns: dict[str, int] = field(default_factory=dict)


class Profile:
    """Attaches the families when it is made, and at each ``step`` those for which the helper was too busy. reasons: why
    families are missing.
    """

    def __init__(
        self,
        kernel: KernelSource,
        helper: Helper,
        families: Mapping[str, Family],
        wanted: Iterable[str],
        pids: Iterable[int],
        now_ns: int,
        length_ns: int,
    ) -> None:
        self._kernel, self._helper, self._families = kernel, helper, families
        self.begun_ns, self.until_ns = now_ns, now_ns + length_ns
        self._missing = {name: "" for name in wanted if name in families}
        self._links: dict[str, list[int]] = {}
        self._since_ns: dict[str, int] = {}
        self._took_ns: dict[str, int] = {}
        kernel.control["profile_pids"] = 0
        kernel.control["profile_pids"][0, :MOST_PIDS] = [*pids, *[0] * MOST_PIDS][:MOST_PIDS]
        kernel.control["profile_until_ns"] = self.until_ns + _GRACE_NS
        self._attach_missing(now_ns)

    def join(self, pid: int, slot: int) -> None:
        """Adds a process, in a free slot."""
        self._kernel.control["profile_pids"][0, slot] = pid

    def _attach_missing(self, now_ns: int) -> None:
        self._retry_ns = now_ns + _RETRY_NS
        for name in [name for name, why in self._missing.items() if why in ("", _BUSY)]:
            self._missing[name] = why = self._attach(self._families[name])
            if not why:
                del self._missing[name]
                self._since_ns[name] = now_ns

    def _attach(self, family: Family) -> str:
        """Why it could not be attached; empty if it is."""
        programs = [(family, p.function) for p in family.probe.programs if p.function in family.programs]
        if not programs:
            return "this kernel has none of its tracepoints"
        try:
            self._links[family.probe.name] = attach(self._helper, *programs)
        except OSError as error:
            return _BUSY if error.errno in (errno.EAGAIN, errno.ETIMEDOUT) else error.strerror or str(error)
        return ""

    @property
    def reasons(self) -> list[str]:
        return [f"{name}: {why}" for name, why in self._missing.items()]

    @property
    def attached_families(self) -> list[str]:
        """Families that are, or were, attached."""
        return [*self._since_ns]

    @property
    def failed(self) -> bool:
        """Nothing is attached, nor will be."""
        return not self._since_ns and _BUSY not in self._missing.values()

    @property
    def due_ns(self) -> int:
        """When something must be detached or attached next."""
        again = [self._retry_ns] if _BUSY in self._missing.values() else []
        return min(
            [self.until_ns, *again, *[self._since_ns[name] + CALLS_NS for name in ("calls",) if name in self._links]]
        )

    def step(self, now_ns: int) -> bool:
        """Detaches what has been attached for long enough; True when the profile is over."""
        if now_ns >= self.until_ns:
            self.end(now_ns)
            return True
        self._attach_missing(now_ns)
        if "calls" in self._links and now_ns >= self._since_ns["calls"] + CALLS_NS:
            self._detach("calls", now_ns)
        return False

    def end(self, now_ns: int) -> None:
        """Detaches everything."""
        for name in [*self._links]:
            self._detach(name, now_ns)
        self._kernel.control["profile_until_ns"] = 0

    def _detach(self, name: str, now_ns: int) -> None:
        for fd in self._links.pop(name):
            os.close(fd)
        self._took_ns[name] = max(1, now_ns - self._since_ns[name])

    def counted(self) -> Counted:
        """The counts, removed from the kernel. Call some time after the end, since a program may still run. Raises
        OSError.
        """
        out = Counted(interval_ns=dict(self._took_ns))
        dtype, stacked = self._kernel.loaded.wire.dtype, dict[str, int]()
        for name in self.attached_families:
            family = self._families[name]
            for one in (m for m in family.probe.maps if m in family.maps):
                if one in STACKS:
                    stacked[one] = family.maps[one]
                    continue
                held = bpf.HashMap(family.maps[one], *(dtype(part) for part in WIRES[one]))
                keys, values = held.read()
                held.drop(keys)
                out.maps[one] = keys, values
        wanted = {int(n) for keys, values in out.maps.values() for n in _numbers(keys, values)}
        for one, fd in stacked.items():
            first, most = STACKS[one]
            for number in sorted(n for n in wanted if first <= n < first + most):
                raw = bpf.lookup(fd, (number - first).to_bytes(4, "little"), STACK_BYTES)
                out.stacks[number] = tuple(int(at) for at in np.frombuffer(raw or b"", "<u8") if at)
            for number in range(most):
                with contextlib.suppress(OSError):
                    bpf.delete(fd, number.to_bytes(4, "little"))
        return out


#: Of each map the structs of its key and value.
WIRES = {
    "oncpu_sums": ("oncpu_key", "oncpu_value"),
    "offcpu_sums": ("offcpu_key", "offcpu_value"),
    "offcpu_gone": ("profile_tid", "offcpu_gone"),
    "offcpu_woken": ("profile_tid", "offcpu_woken"),
    "block_sums": ("block_key", "block_value"),
    "block_requests": ("profile_address", "block_request"),
    "contention_sums": ("contention_key", "contention_value"),
    "contention_begun": ("contention_wait", "contention_begun"),
    "reclaim_sums": ("reclaim_key", "reclaim_value"),
    "reclaim_begun": ("reclaim_who", "profile_time"),
    "synack_sums": ("synack_key", "synack_value"),
    "synack_syns": ("synack_pair", "profile_time"),
    "calls_sums": ("calls_key", "calls_value"),
    "calls_open": ("profile_tid", "calls_open"),
}


def _numbers(keys: np.ndarray, values: np.ndarray) -> Iterable[int]:
    """Numbers of the stacks in these rows."""
    for rows in (keys, values["key"] if "key" in (values.dtype.names or ()) else values):
        for name in {"kernel_stack", "user_stack"} & {*(rows.dtype.names or ())}:
            yield from np.unique(rows[name]).tolist()
