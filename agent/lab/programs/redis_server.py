"""Redis: on loopback, on another address of the node, and on the far side of the link."""

from __future__ import annotations

import os
import shutil
from functools import partial

from agent.lab.program import FAR, LOOPBACK, OTHER, LabProgram, Run

PORT = 6379
PLACES = {"redis": LOOPBACK, "redis-other": OTHER, "redis-far": FAR}


def serve(address: str, run: Run) -> None:
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed (apt install redis-server)")
    os.chdir(run.directory)
    os.execve(
        program,
        [
            program,
            "--port",
            str(PORT),
            "--bind",
            address,
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(run.directory),
            "--daemonize",
            "no",
            "--enable-debug-command",
            "yes",
            "--protected-mode",
            "no",
        ],
        {"PATH": os.environ.get("PATH", "")},
    )


PROGRAMS = tuple(
    LabProgram(
        name,
        partial(serve, address),
        "far" if address == FAR else "node",
        names=(f"{address}:{PORT}",),
        server=True,
        comm="redis-server",
        polled=("redis", f"redis://{address}:{PORT}/0"),
    )
    for name, address in PLACES.items()
)
