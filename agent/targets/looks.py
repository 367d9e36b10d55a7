"""Looks at processes: whose they are, what they took, and what is known of a process afterwards."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from agent.kernel import limits
from agent.kernel.steps import HeldUpError, Steps
from agent.targets.asked import FileId
from agent.targets.shares import Owner

if TYPE_CHECKING:
    from agent.targets.analyst import Analyst
    from agent.targets.attacher import Attacher


class Process(NamedTuple):
    """size: as in /proc/PID/statm, which tells whether it has mapped anything since; exe and used: files."""

    size: bytes
    exe: list[FileId]
    used: set[FileId]


@dataclass
class Look:
    """A look under way. whose: the user that it counts for, or the process where that is root; told: (probe, path) of
    what it left out.
    """

    owner: Owner
    whose: tuple[str, int]
    spent_s: float = 0.0
    told: set[tuple[str, str]] = field(default_factory=set)


class Rests:
    """Who is not looked at for a while since looks at him took long, by ``Look.whose``; times in ns of
    CLOCK_BOOTTIME.
    """

    def __init__(self) -> None:
        self._until_ns: dict[tuple[str, int], int] = {}
        self._users_ns = 0

    def charge(self, whose: tuple[str, int], spent_s: float) -> None:
        """He rests after a long look; all users but root do where their looks, however short, take too much
        together.
        """
        now_ns, spent_s = time.clock_gettime_ns(time.CLOCK_BOOTTIME), min(spent_s, limits.LONGEST_S)
        if spent_s > limits.LONG_S:
            self._until_ns[whose] = max(now_ns + int(spent_s * limits.REST * 1e9), self._until_ns.get(whose, 0))
        if whose[0].startswith("user"):
            self._users_ns = max(now_ns, self._users_ns) + int(spent_s * limits.USERS_REST * 1e9)

    def until_ns(self, whose: tuple[str, int]) -> int:
        """When there may be looks of this user's (or of root's process) again."""
        return max(
            self._until_ns.get(whose, 0), self._users_ns - limits.USERS_BURST_NS if whose[0].startswith("user") else 0
        )

    def forget(self, now_ns: int) -> None:
        """Rests that are over."""
        self._until_ns = {whose: until for whose, until in self._until_ns.items() if until > now_ns}


class Meter:
    """Adds up the time that looks take of this process, the helper and the examiner, and has those rest who stalled the
    helper.
    """

    def __init__(self, helper: Attacher, analyst: Analyst, rests: Rests) -> None:
        self._helper, self._analyst, self._rests = helper, analyst, rests
        self._stalled: tuple[tuple[str, int], float] | None = None

    def of(self, look: Look, steps: Steps[None]) -> Steps[None]:
        """Runs a look; the time that it waits for its turn does not count."""
        value, error = None, None
        while True:
            begun = time.monotonic()
            try:
                wait = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration:
                return
            finally:
                look.spent_s += time.monotonic() - begun
            value, error = None, None
            try:
                value = yield wait
            except Exception as failure:  # noqa: BLE001 - the look's to handle
                error = failure
                if isinstance(failure, HeldUpError):  # who held it up pays
                    self._helper.took_s = 0.0
                elif isinstance(failure, TimeoutError):
                    self._stalled = look.whose, time.monotonic() - self._helper.took_s
            look.spent_s += self._helper.took_s + self._analyst.took_s
            self._helper.took_s = self._analyst.took_s = 0.0

    def settle(self) -> None:
        """Who stalled the helper rests for all of that time, once it answers again."""
        if self._stalled is not None and not self._helper.silent:
            (whose, since_s), self._stalled = self._stalled, None
            self._rests.charge(whose, time.monotonic() - since_s)


def owner_of(pid: int) -> Owner:
    """By the real user: a process may make /proc/PID belong to root. Raises OSError, ValueError, IndexError."""
    with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
        head = status.read(1024).decode(errors="replace")
    return Owner(pid, int(head.split("\nUid:", 1)[1].split(None, 1)[0]), head[6 : head.index("\n")])


def link_of(fd: int) -> str:
    """The path of a descriptor, empty where there is none."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
