"""Decisions of limiter libraries in unmodified Go programs, as agent/limiters/libraries/ declares them; see
bpf/limiter_decision.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from agent.instruments.kind import setup
from agent.kernel.probe import Probe, Program, Ring
from agent.kernel.wire_structs import wire_records
from agent.limiters.catalogue import seen
from agent.limiters.library import Seen
from agent.limiters.settings import LimiterSettings

#: A call stack of a limiter, by its number in decisions. inode, device (as in the kernel, MKDEV): of the executable.
#: library: its place in ``catalogue.seen``. places: the return addresses as offsets from the start of the code,
#: innermost first; 0 is none.
STACKS = np.dtype([("id", "<u8"), ("inode", "<u8"), ("device", "<u4"), ("library", "<u4"), ("places", "<u8", (12,))])


def decode_stacks(records: np.ndarray) -> np.ndarray:
    """Records of ``struct limiter_stack`` -> ``STACKS``."""
    out = np.empty(len(records), STACKS)
    for name in ("id", "inode", "device", "library"):
        out[name] = records[name]
    frames, start = records["frames"], records["start_code"][:, None]
    out["places"] = np.where(frames > start, frames - start, 0)
    return out


def _programs(chosen: Mapping[str, Seen]) -> Iterable[Program]:
    """Raises ValueError for a name that two libraries give."""
    libraries = dict[str, str]()
    for library, one in chosen.items():
        loses = {
            name: (function.loses, function.returned) for function in one.functions for name in function.programs()
        }
        for name, (what, returned) in loses.items():
            if name in libraries:
                raise ValueError(f"{library}: {name} is also a program of {libraries[name]}: give it another name")
            libraries[name] = library
            yield Program(name, "uretprobe" if name == returned else "uprobe", loses=what)


def probe(only: Callable[[str], bool] = lambda library: True) -> Probe:
    """The family as ``catalogue.seen`` has its libraries now; of those that ``only`` names."""
    chosen = {name: one for name, one in seen().items() if only(name)}
    return Probe(
        name="limiter",
        programs=tuple(_programs(chosen)),
        rings=(
            Ring("limiter_stacks", "limiter_stack", decode_stacks),
            # rows once their limiters have names, and their sleeps have ended (agent/instruments/limiters/)
            Ring("limiter_decisions", "limiter_decision", wire_records),
        ),
        parts=("limiter_decision.h", "limiter_stack.h"),
        text="".join(one.text(number) for number, (name, one) in enumerate(seen().items()) if name in chosen),
        maps=("limiter_binaries", "limiter_counts", "limiter_deciding", "limiter_secret"),
        counts=("limiter_shares",),
        setup=setup,
        settings=LimiterSettings,
    )


PROBE = probe()
