"""A Go program with golang.org/x/time/rate: built where Go is installed, by modules or else with Debian's own
package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from agent.demo.processes import Children, own_directory

_SOURCE = Path(__file__).parent / "golimiter"
_DEBIAN = Path("/usr/share/gocode")
MISSING = "the Go limiter is left out: Go is not installed (apt install golang-go)"


def paths(work: Path) -> list[dict[str, str]]:
    """Environments to build a program in that needs golang.org/x/time, the best first. work: for what the toolchain
    writes meanwhile.
    """
    common = {"HOME": str(work), **os.environ, "GOTMPDIR": str(work), "CGO_ENABLED": "0"}
    found = [{**common, "GO111MODULE": "on", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}]
    if (_DEBIAN / "src/golang.org/x/time").is_dir():
        found.append({**common, "GO111MODULE": "off", "GOFLAGS": "", "GOPATH": str(_DEBIAN)})
    return found


class GoProgram:
    """Builds in the background, then runs. ``step`` is called now and then; it returns a note when the program is left
    out.
    """

    def __init__(self, processes: Children, directory: Path) -> None:
        self._processes, self._directory = processes, directory
        self._binary = directory / "golimiter"
        self._work = directory / "go"
        self._work.mkdir()
        self._paths = paths(self._work)
        self._build: subprocess.Popen[bytes] | None = self._next()

    def step(self) -> str | None:
        if self._build is None or self._build.poll() is None:
            return None
        built = self._build.returncode == 0
        self._build = None if built else self._next()
        if built:
            self._processes.run([str(self._binary)], own_directory(self._directory / "golimiter.d"))
        return None if built or self._build else "the Go limiter is left out: it could not be built (see above)"

    def _next(self) -> subprocess.Popen[bytes] | None:
        if not self._paths:
            return None
        return self._processes.run(
            ["go", "build", "-o", str(self._binary), "."], _SOURCE, self._paths.pop(0), nobody=False
        )


def start(processes: Children, directory: Path) -> GoProgram | None:
    """None where Go is not installed."""
    return GoProgram(processes, directory) if shutil.which("go") else None
