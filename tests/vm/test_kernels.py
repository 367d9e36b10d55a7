"""The default probes on Debian's kernels, booted in qemu: they attach, count exactly, and see real clock steps of an hour."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.vm import guest, kernels, machine

NAMES = os.environ.get("TICKSCOPE_TEST_KERNELS", "5.10 6.1").split()
CAP_BPF, PTRACE_SEARCH_CHECKPOINT, SYS_ADMIN = 1 << 39, 1 << 19 | 1 << 2 | 1 << 40, 1 << 21
CAPABILITIES = {"5.10": (CAP_BPF, SYS_ADMIN), "6.1": (0, SYS_ADMIN)}  # of the agent, and of the helper besides; none on newer kernels


@cache
def _booted() -> dict[str, Future[machine.Outcome]]:
    """All at once: the machines spend half their time waiting."""
    pool = ThreadPoolExecutor(len(NAMES))
    command = [sys.executable, "tests/vm/guest.py"]
    checkout = Path(__file__).parents[2]
    return {name: pool.submit(machine.run, name, command, limit_s=600, cwd=checkout) for name in NAMES}


@pytest.fixture(params=NAMES)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What guest.py saw on a kernel; a kernel that cannot be fetched here is skipped, one that does not boot fails."""
    try:
        done = _booted()[request.param].result()
    except kernels.Unavailable as error:
        pytest.skip(str(error))
    assert done.status == 0, done.output + done.console
    return {"kernel": request.param, **json.loads(done.output.splitlines()[-1])}


def test_all_default_probes_attach(seen: dict[str, Any]) -> None:
    states = {p["probe"]: p["state"] for p in seen["status"]["probes"]}
    assert states == dict.fromkeys(("clock", "exec", "limiter", "syscalls", "tcp", "tls"), "attached"), seen["status"]["probes"]
    assert seen["stopped"] == 130


def test_processes_hold_what_this_kernel_needs(seen: dict[str, Any]) -> None:
    agent, helper = CAPABILITIES.get(seen["kernel"], (0, 0))
    promised = {"agent": agent, "clock watch": 0, "helper": PTRACE_SEARCH_CHECKPOINT | helper}
    assert {role: int(mask, 16) for role, mask in seen["capabilities"].items()} == promised


def test_connections_are_counted_exactly(seen: dict[str, Any]) -> None:
    mine = [r for r in seen["tcp_connect"] if r["pid"] == seen["pid"] and r["peer"].endswith(f":{seen['port']}")]
    assert sum(r["result"] == "ok" for r in mine) == guest.CONNECTS
    assert sum(r["result"] == "failed" for r in mine) == guest.REFUSED
    closed = [r for r in seen["tcp_close"] if r["pid"] == seen["pid"]]
    for role in ("client", "server"):
        assert sum(r["role"] == role for r in closed) == guest.CONNECTS
    assert seen["loss"] == []


def test_real_clock_steps_have_size_and_actor(seen: dict[str, Any]) -> None:
    steps = [r for r in seen["clock_change"] if r["kind"] == "step"]
    assert [r["pid"] for r in steps] == [seen["pid"]] * 2
    for row, asked_s in zip(steps, (guest.STEP_S, -guest.STEP_S), strict=True):
        # the caller reads the clock, then sets it: emulation may take a while between the two
        assert abs(row["size_ns"] - asked_s * 10**9) < 500_000_000
