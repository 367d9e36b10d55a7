"""A Go API with golang.org/x/time/rate, which calls the upstream for each request: it resolves its name and
connects.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agent.demo.go_part import paths
from agent.lab.program import FAR, LOOPBACK, LabProgram, Run
from agent.lab.programs import dns_server, upstream

PORT = 8090
_SOURCE = Path(__file__).parent / "goapi_source"


def build(shared: Path) -> None:
    work = shared / "go"
    work.mkdir()
    failed = ""
    for environment in paths(work):
        done = subprocess.run(
            ["go", "build", "-o", str(shared / "goapi"), "."],
            cwd=_SOURCE,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            return
        failed = done.stderr.strip()
    raise OSError(f"go build: {failed}")


def serve(run: Run) -> None:
    program = str(run.shared / "goapi")
    os.execv(
        program, [program, f"{LOOPBACK}:{PORT}", f"http://policy.lab:{upstream.PORT}/", f"{FAR}:{dns_server.PORT}"]
    )


PROGRAMS = (
    LabProgram(
        "goapi",
        serve,
        names=(f"{LOOPBACK}:{PORT}",),
        server=True,
        uses=("upstream", "dns", "link"),
        comm="goapi",
        prepare=build,
    ),
)
