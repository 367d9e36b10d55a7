"""Attaches the dns family's programs to every C library in use, and to Go programs, which have a resolver of their
own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from agent.kernel.detach import close_aside
from agent.probes.beside.libc import LIBRARIES
from agent.targets.asked import Ask

if TYPE_CHECKING:
    from agent.kernel.load import Family
    from agent.kernel.steps import Steps
    from agent.targets.asked import Release, Target
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

_FUNCTION = "getaddrinfo"


class Lookups:
    """Asks ``targets`` for C libraries and Go programs, and probes each once. What cannot be probed is told by
    ``targets``.
    """

    def __init__(self, family: Family, helper: Attacher, targets: Targets) -> None:
        self._family, self._helper = family, helper
        targets.library(LIBRARIES, Ask("functions", self._found, "dns", {"names": [_FUNCTION]}))
        targets.exe(Ask("go", self._in_go, "dns"))

    def _found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        offset = facts["offsets"].get(_FUNCTION)
        if offset is None:
            return None
        return (yield from self._attach(target, "dns", offset, [offset], ret=True))

    def _in_go(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """Never a return probe: Go moves its stacks."""
        if facts["lookups"] is None:
            return None
        entry, returns = facts["lookups"]
        return (yield from self._attach(target, "dns_go", entry, returns, ret=False))

    def _attach(self, target: Target, stem: str, entry: int, returns: list[int], ret: bool) -> Steps[Release]:
        """The returns first, so that no entry goes without one."""
        target.reserve(2, 1 + len(returns))
        programs, links = self._family.programs, list[int]()
        try:
            links += yield from self._helper.attaching(programs[f"{stem}_out"], target.fd, returns, ret=ret)
            links += yield from self._helper.attaching(programs[f"{stem}_in"], target.fd, [entry])
        except OSError:
            close_aside(links)
            raise
        return partial(close_aside, links)
