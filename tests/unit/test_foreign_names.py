"""Names that others give, which need not be UTF-8: of processes, and of mounts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A process with such a name, in a mount namespace of its own with a mount of such a name before all others that come.
NAMED = r"""
import contextlib, ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(15, b"\xff\xfe)", 0, 0, 0) == 0
assert libc.unshare(0x20000) == 0
place = os.fsencode(sys.argv[1]) + b"/\xff\xfe"
os.mkdir(place)
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount(b"tmpfs", place, b"tmpfs", 0, None) == 0
"""


@pytest.mark.parametrize(
    "code",
    [
        "from agent.kernel.opening import open_cgroup\nwith contextlib.suppress(OSError): open_cgroup(1)",
        "from agent.doctor import cgroup\ncgroup()",
        "from agent.lab.stage.cgroups import roots\nroots()",
        "from agent.store.segments import started_ns\nassert started_ns(os.getpid())",
        "from agent.cli.status import memory_of\nassert memory_of({'pid': os.getpid()})['uid'] == 0",
    ],
)
def test_a_name_that_is_no_text_is_read_past(code: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-c", NAMED + code, str(tmp_path)], env=env, stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
