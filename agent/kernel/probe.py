"""The declaration of a family of probes: programs, rings, aggregates and options. Decoding is pure: arrays in, batches
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent.batch import Batch
from agent.contracts import Source


@dataclass(frozen=True)
class Program:
    """One BPF program of a family.

    kind: ``raw_tp`` (attached by the loader, or temporarily if ``on_demand``), ``tp_btf`` (the same, but it may follow
    the tracepoint's arguments and call kernel functions), ``uprobe`` or ``uretprobe`` (loaded, then attached by the
    helper to files that the agent finds). target: the tracepoint's name for ``raw_tp`` and ``tp_btf``. needs: a kernel
    function that it cannot do without, a colon, and the reason; its C text has the macro KFUNC_ and the name. loses:
    what is not observed without it; a family without one of its programs is ``degraded`` and shows this. fallback: for
    ``raw_tp``, a kernel function whose return (fexit) replaces a missing tracepoint; the loader attaches it even if
    ``on_demand``. optional: another program observes the same, later or at more cost, on kernels without this one, so
    its absence is no degradation. instead_of: an earlier program of the family; this one is loaded only if that one
    could not be.
    """

    function: str
    kind: str = "raw_tp"
    target: str = ""
    loses: str = ""
    on_demand: bool = False
    fallback: str = ""
    optional: bool = False
    needs: str = ""
    instead_of: str = ""


@dataclass(frozen=True)
class Ring:
    """A BPF ring buffer of records of one struct.

    decode: (records of ``wire``'s dtype, shape (n,)) -> their batch. Rows of a table go to the loop, an array of
    another documented dtype to the ring's subscribers (``KernelSource.subscribe``). Its program decides which records
    wake the agent before its next beat (``wake_each`` in bpf/tickscope.h).
    """

    map: str
    wire: str
    decode: Callable[[np.ndarray], Batch | np.ndarray]


@dataclass(frozen=True)
class Aggregate:
    """A pair of hash maps, written alternately (control.slot 0, 1). The map that is not written is read and emptied
    each interval.

    decode: (keys, values, interval_ns, t_ns of the interval's end) -> batches. sums: a mappable array of {key, value},
    shape (CPUs, 2 slots, ``places``), for programs on a hot path that add up without a look-up. Its used elements
    (``value.count``) are read with the maps', so a key may occur several times.
    """

    maps: tuple[str, str]
    key: str
    value: str
    decode: Callable[[np.ndarray, np.ndarray, int, int], Iterable[Batch]]
    sums: str = ""
    places: int = 0


@dataclass(frozen=True)
class Parts:
    """Parts of the agent for a family's ``setup``. settings: the section that the family names. window: the sampling
    window of each second. watch, history, last: of the clock.
    """

    settings: Any = None
    window: Any = None
    watch: Any = None
    history: Any = None
    last: Any = None


@dataclass(frozen=True)
class Probe:
    """A family. ``options`` are compile-time numbers, each a ``-DNAME=value`` that configuration may override.

    profiling: attached only for seconds, by an on-demand profile (agent/investigate/); left out with ``--investigate
    off``. text: generated C text after the sources. parts: C files of the family before its main one (BCC rewrites map
    methods only in the text it is given, so no #include). more: C files after it, of kinds of binaries with their own
    programs. after: families whose C text this one uses if present (``#ifdef`` of their definitions); they come before
    it. maps: further maps that user space needs. counts: further loss counters, LOST_NAME each, beside those of rings
    and aggregates. setup: called once with the attached family, the kernel source, the helper, the targets and
    ``Parts``, for sources that a declaration cannot express (uprobe targets, maps that the agent fills); returns
    sources. settings: the section of the settings for ``setup``.
    """

    name: str
    programs: tuple[Program, ...]
    rings: tuple[Ring, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    text: str = ""
    profiling: bool = False
    setup: Callable[..., Iterable[Source]] | None = None
    settings: type | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """C files under bpf/, in the order in which they are compiled."""
        return (*self.parts, f"{self.name}.bpf.c", *self.more)


def ordered(probes: Iterable[Probe]) -> list[Probe]:
    """The families, each after those in its ``after`` that are among them, else in the given order. Raises ValueError
    for a cycle.
    """
    waiting, out = list(probes), list[Probe]()
    while waiting:
        names = {probe.name for probe in waiting}
        ready = next((probe for probe in waiting if not names & set(probe.after)), None)
        if ready is None:
            raise ValueError(f"families that come after each other: {', '.join(sorted(names))}")
        waiting.remove(ready)
        out.append(ready)
    return out
