"""Stacks as text: functions, innermost first, without the frames of tracing itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Of a stack's text (agent/tables/profiles.py).
KERNEL_BYTES, USER_BYTES = 512, 768
#: Frames of tracing itself and of each context switch, at the top.
_OURS = re.compile(
    r"(bpf_|__bpf_|___?bpf_|__traceiter_|trace_call_bpf|perf_call_bpf|__schedule$|schedule$|preempt_schedule)"
)
#: Functions that take a lock. Their caller is reported as the taker.
_TAKES = re.compile(
    r"\w*(spin_lock|spin_trylock|read_lock|write_lock|mutex_lock|rwsem_|lock_slowpath|osq_lock|lock_sock)[\w.]*|(percpu_)?(down|up)(_[\w.]+)?"
)
_MAPS_LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ..x\S* ([0-9a-f]+) \S+ \d+ *(.*)$", re.M)


def fitted(frames: Iterable[str], width: int) -> str:
    """As many frames as fit, innermost first; ``...`` for the rest."""
    out, room = list[str](), width
    for frame in frames:
        if len(frame.encode()) + 1 > room - 4:
            return ";".join([*out, "..."])
        out.append(frame)
        room -= len(frame.encode()) + 1
    return ";".join(out)


def kernel_text(addresses: Iterable[int], names: Mapping[int, str]) -> str:
    """``inner;outer``; an address for an unknown name."""
    frames = [names.get(at) or f"{at:#x}" for at in addresses]
    while frames and _OURS.match(frames[0]):
        frames.pop(0)
    return fitted(frames, KERNEL_BYTES)


def lock_text(address: int, addresses: Iterable[int], names: Mapping[int, str]) -> str:
    """The lock's name, else ``taken by FUNCTION``."""
    if names.get(address):
        return names[address]
    frames = kernel_text(addresses, names).split(";")
    taker = next((f for f in frames if f and not _TAKES.fullmatch(f)), "")
    return f"taken by {taker}" if taker else "unknown"


@dataclass(frozen=True)
class CodePlace:
    """Where an address of a process lies. span: of its mapping, as in /proc/PID/map_files; offset: in the file; path:
    empty if it is in no file.
    """

    span: str
    offset: int
    path: str

    @property
    def file(self) -> str:
        return self.path.removesuffix(" (deleted)").rpartition("/")[2]


def places(maps: bytes, addresses: Iterable[int]) -> dict[int, CodePlace]:
    """From the text of /proc/PID/maps; addresses outside of code are left out."""
    wanted, found = sorted(set(addresses)), dict[int, CodePlace]()
    i = 0
    for match in _MAPS_LINE.finditer(maps):
        if i == len(wanted):
            break
        low, high, offset = (int(match[n], 16) for n in (1, 2, 3))
        while i < len(wanted) and wanted[i] < low:
            i += 1
        while i < len(wanted) and wanted[i] < high:
            found[wanted[i]] = CodePlace(
                f"{low:x}-{high:x}", wanted[i] - low + offset, match[4].decode("utf-8", "replace")
            )
            i += 1
    return found


def user_text(addresses: Iterable[int], by_address: Mapping[int, CodePlace], names: Mapping[int, str]) -> str:
    """``inner;outer``; FILE+0xOFFSET, or an address, for an unknown function. The stack ends at the first address
    outside of code: the frame chain was lost there.
    """
    frames = []
    for at in addresses:
        place = by_address.get(at)
        if place is None and by_address:
            break
        if names.get(at):
            frames.append(names[at])
        elif place is not None and place.path:
            frames.append(f"{place.file.replace(';', '?')}+{place.offset:#x}")
        else:
            frames.append(f"{at:#x}")
    return fitted(frames, USER_BYTES)
