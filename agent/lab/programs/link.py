"""The link between the node and the far side: a forwarder between two TUN devices."""

from __future__ import annotations

import os

from agent.lab.program import FAR, LabProgram, Run
from agent.lab.stage.link import Treatment
from agent.lab.stage.tun_link import Forwarder

USUAL = {
    "usual_s": 0.0005,
    "delay_s": 0.0,
    "jitter_s": 0.0,
    "loss": 0.0,
    "cut": False,
    "reset": False,
    "refuse": "",
    "port": 0,
    "protocol": 0,
}


def forward(run: Run) -> None:
    os.nice(-10)  # its own lack of CPU would be a fault that was not injected
    run.listen()
    never, _keep = os.pipe()
    Forwarder(run.ends, Treatment(run.settings, run.seed)).run(never)


PROGRAMS = (LabProgram("link", forward, settings=USUAL, names=(FAR,), server=True, root=True),)
