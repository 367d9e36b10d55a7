"""Has the kernel look at the buckets of programs that are watched in windows (bpf/limiter_looks.h)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from agent.kernel import bpf
from agent.kernel.load import Family
from agent.kernel.wire import Wire
from agent.limiters.catalogue import seen
from agent.probes.beside.go_binary import Binary
from agent.probes.beside.go_rates import BucketPlace
from agent.targets.attacher import Attacher

PROGRAM, _TRACEPOINT = "limiter_on_switch", "sched_switch"
#: Processes, and limiters of one, as the kernel's map has them.
PROCESSES, LIMITERS = 64, 16
_OLD = 1
#: Between two looks at a process, at least, while it runs and where it has stopped; and for each limiter of all of
#: them, so that no more than 4,000 are taken in a second.
_GATE_NS, _IDLE_GATE_NS, _EACH_NS = 1_000_000, 250_000, 250_000


def gates(limiters: int) -> tuple[int, int]:
    """ns between two looks at a process, and where it has stopped, with so many limiters in all processes."""
    least_ns = limiters * _EACH_NS
    return max(_GATE_NS, least_ns), max(_IDLE_GATE_NS, least_ns)


class GoLooks:
    """binaries: all that are known."""

    def __init__(self, family: Family, wire: Wire, helper: Attacher, binaries: Mapping[Any, Binary]) -> None:
        self._family, self._helper, self._binaries = family, helper, binaries
        self._value = wire.dtype("limiter_hot")
        self._watched: dict[int, bytes] = {}
        self._link = -1

    def feed(self, looks: np.ndarray) -> None:
        """Takes records of ``struct limiter_look``."""
        for one in self._binaries.values():
            if one.share.mode == "windows" or one.opening:
                one.rates.looked(looks, list(seen()).index(one.library))

    def turn(self) -> None:
        """Has it look at the buckets of all that are watched in windows now, and at no others; of more than there are
        places for, user by user in turn.
        """
        users: dict[int | None, dict[int, list[BucketPlace]]] = {}
        for one in self._binaries.values():
            for place in one.rates.wanted() if one.file >= 0 and (one.share.mode == "windows" or one.opening) else ():
                users.setdefault(one.uid, {}).setdefault(place.pid, []).append(place)
        in_turn = chain.from_iterable(zip_longest(*(of.items() for of in users.values())))
        self._watch(dict(one for one in in_turn if one is not None))

    def _watch(self, wanted: Mapping[int, list[BucketPlace]]) -> None:
        """wanted: of each process its limiters."""
        chosen = dict(list(wanted.items())[:PROCESSES]) if PROGRAM in self._family.programs else {}
        each = {pid: _of_one_program(places)[:LIMITERS] for pid, places in chosen.items()}
        between_ns = gates(sum(map(len, each.values())))
        values = {pid: self._packed(places, between_ns) for pid, places in each.items()}
        if values == self._watched:
            return
        try:
            for pid in self._watched.keys() - values.keys():
                self._forget(pid)
            for pid, value in values.items():
                bpf.update(self._family.maps["limiter_hot"], pid.to_bytes(4, "little"), value)
            self._watched = values
            self._turn(bool(values))
        except OSError as error:
            self._family.trouble(
                PROGRAM, f"{PROGRAM}: {error.strerror or error}: what hot limiters let through is told by windows alone"
            )
        else:
            self._family.well(PROGRAM)

    def _forget(self, pid: int) -> None:
        """Raises OSError."""
        for name in ("limiter_hot", "limiter_cpus"):  # in this order: what the first has makes the second
            with contextlib.suppress(FileNotFoundError):
                bpf.delete(self._family.maps[name], pid.to_bytes(4, "little"))

    def _packed(self, places: list[BucketPlace], between_ns: tuple[int, int]) -> bytes:
        value = np.zeros(1, self._value)
        value["limiters"][0, : len(places)] = [one.address | _OLD * one.old for one in places]
        value["gate_ns"], value["idle_gate_ns"] = between_ns
        value["proc_start_ns"], value["exec_id"] = places[0].proc_start_ns, places[0].exec_id
        value["count"] = len(places)
        return value.tobytes()

    def _turn(self, on: bool) -> None:
        """Attaches the program, or takes it away. Raises OSError."""
        if on and self._link < 0:
            self._link = self._helper.attach_raw_tracepoint(self._family.programs[PROGRAM], _TRACEPOINT)
        elif not on:
            self.close()

    def close(self) -> None:
        if self._link >= 0:
            os.close(self._link)
            self._link = -1


def _of_one_program(places: list[BucketPlace]) -> list[BucketPlace]:
    """Those of what the process is now, or was last."""
    last = max((one.proc_start_ns, one.exec_id) for one in places)
    return [one for one in places if (one.proc_start_ns, one.exec_id) == last]
