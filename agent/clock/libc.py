"""Attaches the clock family's uprobes to every C library in use: who adjusts frequency and offset, and who tries and may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.kernel.elf import Elf, ElfError

if TYPE_CHECKING:
    from agent.kernel.load import Family
    from agent.kernel.targets import Attacher, Targets

#: glibc (libc.so.6, libc-2.31.so) and musl.
LIBRARIES = rb"libc\.so\.6|libc-2\.\d+\.so|ld-musl-[\w-]+\.so\.1|libc\.musl-[\w-]+\.so\.1"
#: Program -> functions with its arguments. Aliases of one address are probed once.
FUNCTIONS = {
    "clock_in_settime": (b"clock_settime",), "clock_in_settimeofday": (b"settimeofday",), "clock_in_adjtime": (b"adjtime",),
    "clock_in_adjtimex": (b"adjtimex", b"ntp_adjtime"), "clock_in_clock_adjtime": (b"clock_adjtime",),
}  # fmt: skip


class Libraries:
    """Asks ``targets`` for C libraries and probes each once. Faults are notes in the family's reason."""

    def __init__(self, family: Family, helper: Attacher, targets: Targets) -> None:
        self._family, self._helper = family, helper
        targets.library(LIBRARIES, self._found)

    def _found(self, pid: int, path: str, fd: int) -> Callable[[], None] | None:
        links: list[int] = []
        try:
            self._probe(fd, links)
        except ElfError as error:
            self._note(f"{path}: {error}")
        except OSError as error:
            self._family.state = "degraded"
            self._note(f"{path}: cannot attach: {error.strerror}")

        def release() -> None:
            for link in links:
                os.close(link)

        return release if links else None

    def _probe(self, fd: int, links: list[int]) -> None:
        """Returns first and entries last, so that no entry goes without its return."""
        elf = Elf(fd)
        symbols = elf.symbols([name for names in FUNCTIONS.values() for name in names])
        places = {
            program: sorted({elf.file_offset(symbols[name].value) for name in names if name in symbols}) for program, names in FUNCTIONS.items()
        }
        programs, attach = self._family.programs, self._helper.attach_uprobe
        links += attach(programs["clock_out"], fd, sorted(set().union(*places.values())), ret=True)
        for program, offsets in places.items():
            if offsets:
                links += attach(programs[program], fd, offsets)

    def _note(self, text: str) -> None:
        if text not in self._family.reason:
            self._family.reason = f"{self._family.reason}; {text}".removeprefix("; ")[:250]
