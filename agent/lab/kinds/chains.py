"""Any fault at any node of the chains (``agent/lab/programs/chains.py``): the root must be named, not a node on the
way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.kinds.stopped import stopped
from agent.lab.kinds.workers import setting_fault
from agent.lab.stage.stage import Stage

Inject = Callable[[Stage, Fault], AbstractContextManager[Offender]]
_SERVERS = ("kiosk", "bank", "vault", "shelf", "packer")
_SLEEPS = (Right("process_wait", "clock_nanosleep", culprit=True), Right("asleep", "clock_nanosleep", culprit=True))
#: By fault: what it is, its nodes, its size, the right answers, and what does it.
_FAULTS: dict[str, tuple[str, tuple[str, ...], Size, tuple[Right, ...], Inject]] = {
    "stopped": (
        "is stopped",
        ("gate", *_SERVERS, "scribe"),
        Size("duration_s", 0.8, 5.0),
        (Right("process_stopped", culprit=True),),
        stopped,
    ),
    "sleeps": (
        "sleeps for each request",
        (*_SERVERS, "scribe"),
        Size("nap_s", 0.8, 3.0),
        _SLEEPS,
        setting_fault("nap_s", lambda fault, _: fault.size),
    ),
    "computes": (
        "computes for each request",
        _SERVERS,
        Size("spin_s", 0.5, 2.0),
        (Right("busy", culprit=True),),
        setting_fault("spin_s", lambda fault, _: fault.size),
    ),
    "holds": (
        "holds the lock of a file",
        ("usher",),
        Size("hold_s", 1.0, 4.0),
        (
            *_SLEEPS,
            Right("syscall", "flock", culprit=True),
            Right("process_wait", "flock", culprit=True),
        ),
        setting_fault("hold_s", lambda fault, _: fault.size),
    ),
}

KINDS = tuple(
    Kind(
        f"chain_{fault}_{node}",
        f"{node} {meaning}, at the end of a chain of calls",
        size,
        (node,),
        right,
        inject,
        (3.0, 6.0),
        settle_s=4.0,
        system="chains",
    )
    for fault, (meaning, nodes, size, right, inject) in _FAULTS.items()
    for node in nodes
)
