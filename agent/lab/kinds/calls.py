"""Calls between programs: time-outs along a chain, retries without a pause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.kinds.stopped import stopped
from agent.lab.kinds.workers import setting_fault
from agent.lab.stage.stage import Stage


@contextmanager
def storming(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The server does not answer one of its clients, which retries after a short pause."""
    usual = stage.programs["eager"].settings["pause_s"]
    stage.processes.set_settings("eager", pause_s=fault.size)
    stage.processes.set_settings("shop", barred="eager")
    try:
        yield Offender("eager")
    finally:
        stage.processes.set_settings("shop", barred="")
        stage.processes.set_settings("eager", pause_s=usual)


KINDS = (
    Kind(
        "retry_storm",
        "a client that gets no answer tries again at once, and keeps the server from others",
        Size("pause_s", 0.008, 0.0001),
        ("eager",),
        (Right("retry_storm", culprit=True),),
        storming,
        (3.0, 7.0),
        touches={"eager": ("shop",)},
    ),
    Kind(
        "deadline_chain",
        "the last server of a chain of calls takes requests and answers none, and time-outs run out",
        Size("duration_s", 2.5, 7.0),
        ("back",),
        (Right("broker_slow", culprit=True), Right("peer_stopped", culprit=True)),
        setting_fault("answering", lambda _f, _u: False),
    ),
    Kind(
        "chain_stopped",
        "the last server of a chain of calls is stopped",
        Size("duration_s", 2.5, 7.0),
        ("back",),
        (Right("process_stopped", culprit=True),),
        stopped,
    ),
)
