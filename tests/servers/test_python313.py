"""The agent's first imports, which leave a library out, by Debian 13's Python: this host may have another one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.releases import program, unpacked

_PACKAGES = ("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib", "libc6", "zlib1g", "libexpat1")
_IMPORTS = """
from agent.common.lean import without_inspect
with without_inspect():
    from dataclasses import dataclass
@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
import sys
print(Point(1), "inspect" in sys.modules)
"""


def test_dataclasses_without_inspect() -> None:
    root = unpacked("trixie-python", "trixie", _PACKAGES)
    python = program(root, "usr/bin/python3.13")
    env = {**os.environ, "PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*python, "-OO", "-B", "-c", _IMPORTS], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Point(x=1, y=2) False\n", "")
