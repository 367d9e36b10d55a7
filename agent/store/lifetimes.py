"""The store's own clock, by which its segments age: CLOCK_BOOTTIME that passed while agents ran, summed over boots.

It does not use the wall clock, so that a step of that clock cannot remove rows.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Self

from agent.common import host
from agent.common.clocks import boot_ns
from agent.common.ownfiles import AGE as NAME


def running() -> tuple[str, int]:
    """The boot id of the running kernel and its CLOCK_BOOTTIME, ns."""
    return host.boot_id(), boot_ns()


@dataclass
class Lifetimes:
    """lived_ns: how long the store has been in use. boot_id, t_ns: the CLOCK_BOOTTIME of the boot up to which that is
    counted.
    """

    boot_id: str = ""
    t_ns: int = 0
    lived_ns: int = 0

    @classmethod
    def load(cls) -> Self | None:
        """Loads it from the current directory; None if the file is missing or damaged. Raises OSError."""
        try:
            with open(NAME, encoding="utf-8") as file:
                doc = json.load(file)
            return cls(str(doc["boot_id"]), int(doc["t_ns"]), int(doc["lived_ns"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def save(self) -> None:
        """Writes it in place, which also works on a full disk. Raises OSError."""
        fd = os.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.ftruncate(fd, os.pwrite(fd, json.dumps(asdict(self)).encode(), 0))
            os.fsync(fd)
        finally:
            os.close(fd)

    def reach(self, boot_id: str, from_ns: int, to_ns: int) -> None:
        """Counts up to ``to_ns`` of a boot, from where that boot was last counted, or from ``from_ns`` for a new boot.
        Never goes back.
        """
        start = self.t_ns if boot_id == self.boot_id else from_ns
        end = max(start, to_ns)
        self.boot_id, self.t_ns, self.lived_ns = boot_id, end, self.lived_ns + end - start
