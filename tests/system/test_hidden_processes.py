"""A host whose /proc hides processes of other users (hidepid=): the agent sees them all the same, or says that it does
not.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.posix import proc
from tests.kernel.go_fixture import Limits, go_binary
from tests.system.agent import TICKSCOPE, Agent

DECISIONS = 101
#: Refuses mount(2), as AppArmor's profile for containers does: a seccomp filter (linux/filter.h) of four instructions.
NO_MOUNT = """
import ctypes, os, struct, sys
nr = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, nr), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *c) for c in code))
fprog = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program)))
assert ctypes.CDLL(None).prctl(22, ctypes.c_ulong(2), ctypes.c_ulong(ctypes.addressof(fprog)), 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


def hidden(options: str) -> tuple[str, ...]:
    """Runs what follows where /proc is mounted so."""
    return ("unshare", "-m", "sh", "-c", f'mount -t proc -o {options} proc /proc && exec "$@"', "sh")


def doctor(wrap: tuple[str, ...]) -> str:
    done = subprocess.run([*wrap, TICKSCOPE, "doctor", "-o", "csv"], capture_output=True, text=True, check=False)
    return next(line for line in done.stdout.splitlines() if line.startswith("proc,"))


@pytest.mark.parametrize("options", ["hidepid=invisible", "hidepid=ptraceable,subset=pid"])
def test_processes_of_others_are_seen(start: Callable[..., Agent], options: str) -> None:
    wrap = hidden(options)
    agent = start(wrap=wrap).ready()
    seen = 0
    for _ in range(10):  # the first one shows the agent the file
        limits = Limits.start(go_binary(), "allow", DECISIONS)
        try:
            assert len(limits.go()) == DECISIONS
            seen = len(agent.rows("limiter_decision", f"pid = {limits.pid}", DECISIONS, limit_s=1))
        finally:
            limits.end()
        if seen:
            break
    assert seen == DECISIONS
    busy = Limits.start(go_binary(), "busy", 5_000, at_once=True)
    try:
        assert agent.some("cpu_use", f"pid = {busy.pid}")
        busy.truth()
    finally:
        busy.end()
    assert not [s for s in agent.status()["sources"] if s["source"] == "/proc"]
    assert doctor(wrap).startswith("proc,ok,")


def test_what_stays_hidden_is_reported(start: Callable[..., Agent], tmp_path: Path) -> None:
    script = tmp_path / "no_mount.py"
    script.write_text(NO_MOUNT)
    wrap = (*hidden("hidepid=invisible"), sys.executable, str(script))
    agent = start(wrap=wrap).ready()
    (reported,) = (s for s in agent.status()["sources"] if s["source"] == "/proc")
    assert "hidepid=invisible" in reported["failure"]
    assert "hidepid=invisible" in agent.log()
    assert doctor(wrap).startswith("proc,warn,")


def test_what_hides() -> None:
    def line(point: str, options: str) -> bytes:
        return f"45 43 0:21 / {point} rw,relatime shared:5 - proc proc {options}\n".encode()

    for options, hiding in (
        ("rw", ""),
        ("rw,gid=4,hidepid=off", ""),
        ("rw,hidepid=0", ""),
        ("rw,gid=4,hidepid=2", "hidepid=2"),
        ("rw,hidepid=ptraceable,subset=pid", "hidepid=ptraceable,subset=pid"),
    ):
        assert proc.hidden_by(line("/proc", options) + line("/elsewhere/proc", "rw,hidepid=2")) == hiding
    assert proc.hidden_by(line("/proc", "rw,hidepid=2") + line("/proc", "rw")) == ""  # covered by the later one
