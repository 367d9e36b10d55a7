"""Time namespaces (time_namespaces(7)): offsets of a container's MONOTONIC and BOOTTIME from the host's. Standard
library only.

The offsets are fixed once a process is in a namespace. MONOTONIC_RAW has MONOTONIC's offset; REALTIME has none. Kernel
programs read the host's clocks in any process, and /proc shows the reader's, so only times that a program reports
itself need conversion.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agent.errors import PRIVILEGE, AgentError


class Offsets(NamedTuple):
    """A process's CLOCK_MONOTONIC and CLOCK_BOOTTIME less the host's, ns."""

    monotonic_ns: int = 0
    boottime_ns: int = 0


def of(process: int | str) -> Offsets:
    """The offsets of a pid, or of ``self``. Raises OSError if there is no such process, ValueError if they are unknown.

    /proc/PID/timens_offsets shows the namespace of the process's future children. This is also its own namespace,
    unless it called unshare(CLONE_NEWTIME) and did not exec since. If its namespaces cannot be read, they are taken to
    be equal.
    """
    directory = Path(f"/proc/{process}")
    try:
        text = (directory / "timens_offsets").read_text()
    except FileNotFoundError:  # a kernel without time namespaces, or no such process
        directory.stat()
        return Offsets()
    own, following = _namespace(directory, "time"), _namespace(directory, "time_for_children")
    if own != following:
        if own != _namespace(Path("/proc/self"), "time"):
            raise ValueError(f"process {process} has unshared its time namespace, and is still in the one before")
        return Offsets() if process == "self" else of("self")
    clocks = {
        name: int(seconds) * 1_000_000_000 + int(rest) for name, seconds, rest in map(str.split, text.splitlines())
    }
    if not {"monotonic", "boottime"} <= clocks.keys():  # a zombie has none
        raise ValueError(f"process {process} has ended")
    return Offsets(clocks["monotonic"], clocks["boottime"])


def _namespace(directory: Path, which: str) -> int | None:
    try:
        return (directory / "ns" / which).stat().st_ino
    except PermissionError:
        return None


def require_host() -> None:
    """Raises AgentError if this process's clocks are not the host's, which the kernel programs read."""
    offsets = of("self")
    if any(offsets):
        raise AgentError(
            "tickscope runs in a time namespace",
            why=words(offsets),
            remedy="run it in the host's: nsenter --time=/proc/1/ns/time tickscope run",
            exit_code=PRIVILEGE,
        )


def words(offsets: Offsets) -> str:
    return (
        f"its MONOTONIC is {offsets.monotonic_ns / 1e9:+g} s and its BOOTTIME {offsets.boottime_ns / 1e9:+g} s from the"
        " host's"
    )
