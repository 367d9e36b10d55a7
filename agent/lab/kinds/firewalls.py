"""A firewall on the link refuses or drops new connections to a server of the far side. The link itself does it; no
firewall of the host is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.kinds.network import TRAFFIC
from agent.lab.program import FAR
from agent.lab.programs.link import USUAL
from agent.lab.stage.stage import Stage


def refused(how: str) -> Callable[[Stage, Fault], AbstractContextManager[Offender]]:
    """how: as ``refuse`` of ``Treatment``."""

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        port, protocol = TRAFFIC[fault.target]
        stage.processes.set_settings("link", refuse=how, port=port, protocol=protocol)
        try:
            yield Offender(object=f"{FAR}:{port}")
        finally:
            stage.processes.set_settings("link", **USUAL)

    return inject


_SIZE, _TARGETS = Size("duration_s", 2.0, 7.0), ("http", "tls")
_TOUCHES = {"http": ("upstream",), "tls": ("nginx",)}
KINDS = (
    Kind(
        "firewall_icmp",
        "a firewall refuses connects by ICMP",
        _SIZE,
        _TARGETS,
        (Right("firewall", "icmp", culprit=True),),
        refused("icmp"),
        touches=_TOUCHES,
    ),
    Kind(
        "firewall_reset",
        "a firewall refuses connects by resets",
        _SIZE,
        _TARGETS,
        (Right("firewall", "reset", culprit=True),),
        refused("reset"),
        touches=_TOUCHES,
    ),
    Kind(
        "firewall_drop",
        "a firewall drops connects",
        _SIZE,
        _TARGETS,
        (Right("network_loss"), Right("firewall")),
        refused("drop"),
        touches=_TOUCHES,
    ),
)
