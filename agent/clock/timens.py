"""Time namespaces (time_namespaces(7)): what a container's MONOTONIC and BOOTTIME read more than the host's. Standard
library only.

The offsets are fixed once a process is in a namespace; MONOTONIC_RAW moves with MONOTONIC, and REALTIME is everybody's.
Kernel programs read the host's clocks whoever is running, and /proc gives the reader's, so only times that a program
says itself have to be converted.
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
    """The offsets of a pid, or of ``self``. Raises OSError where there is no such process, ValueError where they cannot
    be told.

    /proc/PID/timens_offsets tells those of the namespace that the process's children will be in. That is its own one,
    unless it has called unshare(CLONE_NEWTIME) and has started no other program since; who may not read its namespaces
    takes them for the same.
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
    if not {"monotonic", "boottime"} <= clocks.keys():  # an ended process that nobody has waited for has none any more
        raise ValueError(f"process {process} has ended")
    return Offsets(clocks["monotonic"], clocks["boottime"])


def _namespace(directory: Path, which: str) -> int | None:
    try:
        return (directory / "ns" / which).stat().st_ino
    except PermissionError:
        return None


def require_host() -> None:
    """Raises AgentError where this process's clocks are not the host's, which the kernel programs read."""
    mine = of("self")
    if any(mine):
        raise AgentError(
            "tickscope runs in a time namespace",
            why=words(mine),
            remedy="run it in the host's: nsenter --time=/proc/1/ns/time tickscope run",
            exit_code=PRIVILEGE,
        )


def words(offsets: Offsets) -> str:
    return (
        f"its MONOTONIC is {offsets.monotonic_ns / 1e9:+g} s and its BOOTTIME {offsets.boottime_ns / 1e9:+g} s from the"
        " host's"
    )
