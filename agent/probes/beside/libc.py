"""Attaches the clock family's uprobes to every C library in use: who adjusts frequency and offset, and who tries and
may not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from agent.kernel.detach import close_aside
from agent.targets.asked import Ask

if TYPE_CHECKING:
    from agent.kernel.load import Family
    from agent.kernel.steps import Steps
    from agent.targets.asked import Release, Target
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

#: glibc (libc.so.6, libc-2.31.so) and musl (libc.so on Debian).
LIBRARIES = rb"libc\.so(?:\.6)?|libc-2\.\d+\.so|ld-musl-[\w-]+\.so\.1|libc\.musl-[\w-]+\.so\.1"
#: Program -> functions with its arguments. Aliases of one address are probed once.
FUNCTIONS = {
    "clock_in_settime": ("clock_settime",),
    "clock_in_settimeofday": ("settimeofday",),
    "clock_in_adjtime": ("adjtime",),
    "clock_in_adjtimex": ("adjtimex", "ntp_adjtime"),
    "clock_in_clock_adjtime": ("clock_adjtime",),
}


class Libraries:
    """Asks ``targets`` for C libraries and probes each once. What cannot be probed is told by ``targets``."""

    def __init__(self, family: Family, helper: Attacher, targets: Targets) -> None:
        self._family, self._helper = family, helper
        names = [name for names in FUNCTIONS.values() for name in names]
        targets.library(LIBRARIES, Ask("functions", self._found, "clock", {"names": names}))

    def _found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """Returns first and entries last, so that no entry goes without its return."""
        offsets: dict[str, int] = facts["offsets"]
        places = {
            program: sorted({offsets[name] for name in names if name in offsets})
            for program, names in FUNCTIONS.items()
        }
        places = {program: at for program, at in places.items() if at}
        every = sorted(set().union(*places.values()))
        if not every:
            return None
        target.reserve(1 + len(places), len(every) + sum(map(len, places.values())))
        programs, links = self._family.programs, list[int]()
        try:
            links += yield from self._helper.attaching(programs["clock_out"], target.fd, every, ret=True)
            for program, at in places.items():
                links += yield from self._helper.attaching(programs[program], target.fd, at)
        except OSError:
            close_aside(links)
            raise
        return partial(close_aside, links)
