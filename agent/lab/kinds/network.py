"""The link to the far side: slow, lossy, cut, or resetting connections; for all traffic, or that of one port."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.program import FAR
from agent.lab.programs.link import USUAL
from agent.lab.programs.queue_work import BROKERS
from agent.lab.stage.stage import Stage
from agent.lab.stage.tun_link import DEVICE

#: Affected traffic by target: port and IP protocol.
TRAFFIC = {"all": (0, 0), "redis": (6379, 6), "tls": (8443, 6), "http": (8000, 6), "dns": (53, 17)} | {
    system: (its.port, 6) for system, its in BROKERS.items()
}


def treated(setting: str, value: bool | None = None) -> Callable[[Stage, Fault], AbstractContextManager[Offender]]:
    """Sets the link's ``setting`` to the fault's size, or to ``value``."""

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        port, protocol = TRAFFIC[fault.target]
        stage.processes.set_settings(
            "link", **{setting: fault.size if value is None else value}, port=port, protocol=protocol
        )
        try:
            yield Offender(object=FAR)
        finally:
            stage.processes.set_settings("link", **USUAL)

    return inject


@contextmanager
def by_netem(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """With the kernel's netem: packets from the node to the far side are delayed or lost before the link."""
    what = (
        ("delay", f"{fault.size * 1e3:.3f}ms")
        if fault.kind == "netem_delay"
        else ("loss", "random", f"{fault.size:.2%}")
    )
    try:
        stage.node.run("tc", "qdisc", "replace", "dev", DEVICE, "root", "netem", *what)
    except subprocess.CalledProcessError as error:
        raise OSError(error.stderr.strip()) from error
    try:
        yield Offender(object=FAR)
    finally:
        stage.node.run("tc", "qdisc", "del", "dev", DEVICE, "root")


_TOUCHES = {"all": ("link",), "redis": ("redis-far",), "tls": ("nginx",), "http": ("upstream",)}
_ANY = ("all", "redis", "tls", "http")
_LOST = (Right("network_loss"),)
KINDS = (
    Kind(
        "network_delay",
        "packets take longer",
        Size("delay_s", 0.01, 0.4),
        _ANY,
        (Right("network_rtt"),),
        treated("delay_s"),
        (3.0, 8.0),
        touches=_TOUCHES,
    ),
    Kind(
        "network_jitter",
        "packets take longer, each another time",
        Size("jitter_s", 0.03, 0.5),
        _ANY,
        (Right("network_rtt"),),
        treated("jitter_s"),
        (3.0, 8.0),
        touches=_TOUCHES,
    ),
    Kind(
        "network_loss",
        "packets are lost",
        Size("loss", 0.05, 0.5),
        _ANY,
        _LOST,
        treated("loss"),
        (4.0, 8.0),
        touches=_TOUCHES,
    ),
    Kind(
        "network_cut",
        "no packet arrives",
        Size("duration_s", 0.3, 5.0),
        _ANY,
        _LOST,
        treated("cut", value=True),
        touches=_TOUCHES,
    ),
    Kind(
        "network_reset",
        "connections are reset",
        Size("duration_s", 0.2, 4.0),
        _ANY,
        (Right("network_loss", "reset"), Right("broker_down")),
        treated("reset", value=True),
        touches=_TOUCHES,
    ),
    Kind(
        "netem_delay",
        "netem delays packets",
        Size("delay_s", 0.02, 0.4),
        ("link",),
        (Right("network_rtt"),),
        by_netem,
        (3.0, 8.0),
        ("throwaway_vm",),
    ),
    Kind(
        "netem_loss",
        "netem loses packets",
        Size("loss", 0.1, 0.5),
        ("link",),
        _LOST,
        by_netem,
        (4.0, 8.0),
        ("throwaway_vm",),
    ),
    Kind(
        "dns_lossy",
        "the DNS server's packets are lost",
        Size("loss", 0.2, 0.8),
        ("dns",),
        (Right("dns"), Right("network_loss")),
        treated("loss"),
        (5.0, 9.0),
    ),
)
