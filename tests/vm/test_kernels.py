"""Debian's kernels, booted in qemu: the default probes attach, count exactly, see real clock steps of an hour, and a
part of each family's tests passes.

TICKSCOPE_TEST_KERNELS says which kernels; all of their tests on all of them is `python -m tests.vm test`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.probes import discover
from tests.vm import guest, suite

NAMES = os.environ.get("TICKSCOPE_TEST_KERNELS", "5.10 6.1").split()
CAP_BPF, PTRACE_SEARCH_CHECKPOINT, SYS_ADMIN = 1 << 39, 1 << 19 | 1 << 2 | 1 << 40, 1 << 21
CAPABILITIES = {
    "5.10": (CAP_BPF, SYS_ADMIN),
    "6.1": (0, SYS_ADMIN),
}  # of the agent, and of the helper besides; none on newer kernels
#: contention_begin came with 5.19; what reads pages of a packet, without which of Redis only Unix sockets are read,
#: with 6.12.
UNAVAILABLE = {"5.10": ("contention",)}
DEGRADED = {"5.10": {"redis"}, "6.1": {"redis"}}
#: By a setting only.
ASKED_FOR = {"unix"}
#: Of each family what old kernels make different, of what is not shown by guest.py.
SLICE = {
    "exec": ["test_ring.py::test_every_record_once_while_the_ring_wraps"],
    "process": [
        "test_process.py::test_each_stop_and_what_ends_it",
        "test_process.py::test_each_end_by_a_signal_and_who_sent_it",
    ],
    "tcp": [
        "test_tcp_close.py::test_bytes_and_owners_of_both_ends",
        "test_tcp_close.py::test_accepted_and_never_used_belongs_to_the_listener",
        "test_tcp_lab.py::test_synack_retransmits",
    ],
    "tls": ["test_tls.py::test_abandoned_handshakes", "test_tls.py::test_detached_probe_sees_nothing"],
    "syscalls": [
        "test_syscalls.py::test_each_blocked_flock_is_one_row",
        "test_syscalls.py::test_full_counts_every_call",
        "test_locks.py::test_a_lock_wait_names_the_holder[here-flock]",
    ],
    "clock": [
        "test_clock.py::test_every_step_once_with_actor_call_sign_and_size[raw_adjtimex-adjtimex]",
        "test_clock.py::test_a_frequency_change_and_its_undoing_and_no_reads[adjtimex]",
        "test_clock.py::test_any_one_view_may_be_missing[libc]",
    ],
    "limiter": [
        "test_limiter.py::test_allow_in_every_kind_of_binary[plain]",
        "test_limiter.py::test_wait_is_one_decision_also_when_it_refuses_early[plain]",
    ],
}


def _boot(name: str, out: Path) -> suite.Run:
    tests = [f"{Path(suite.files(family)[0]).parent}/{test}" for family in SLICE for test in SLICE[family]]
    first = shlex.join([sys.executable, "tests/vm/guest.py", "/run/out/seen.json"])
    return suite.run(name, tests, out, limit_s=2400, first=first)


def begin(pool: ThreadPoolExecutor, folders: pytest.TempPathFactory) -> dict[str, tuple[Path, Future[suite.Run]]]:
    suite.prepare(("plain",))
    places = {name: folders.mktemp(name) for name in NAMES}
    return {name: (out, pool.submit(_boot, name, out)) for name, out in places.items()}


@pytest.fixture(params=NAMES)
def kernel(request: pytest.FixtureRequest, machines: dict[str, Any]) -> tuple[str, Path, suite.Run]:
    """(name, what the machine left, its tests) of a kernel. One that cannot be fetched or does not boot fails."""
    out, run = machines["test_kernels"][request.param]
    return request.param, out, run.result()


@pytest.fixture
def seen(kernel: tuple[str, Path, suite.Run]) -> dict[str, Any]:
    """What guest.py saw."""
    name, out, run = kernel
    assert (out / "seen.json").exists(), run.outcome.output + run.outcome.console
    return {"kernel": name, **json.loads((out / "seen.json").read_text())}


def test_all_default_probes_attach(seen: dict[str, Any]) -> None:
    states = {p["probe"]: p["state"] for p in seen["status"]["probes"]}
    missing = UNAVAILABLE.get(seen["kernel"], ())
    assert {name for name, state in states.items() if state == "unavailable"} == set(missing), seen["status"]["probes"]
    degraded = DEGRADED.get(seen["kernel"], set())
    assert {name for name, state in states.items() if state == "degraded"} == degraded, seen["status"]["probes"]
    attached = set(discover()) - ASKED_FOR - set(missing) - degraded
    assert {name for name, state in states.items() if state == "attached"} == attached
    assert seen["stopped"] == 130


def test_processes_hold_what_this_kernel_needs(seen: dict[str, Any]) -> None:
    assert seen["privilege"] == ""
    agent, helper = CAPABILITIES.get(seen["kernel"], (0, 0))
    assert seen["capabilities"] == {
        "agent": agent,
        "clock watch": 0,
        "helper": PTRACE_SEARCH_CHECKPOINT | helper,
    }


def test_connections_are_counted_exactly(seen: dict[str, Any]) -> None:
    # such a kernel leaves out runs of programs, which are counted
    lost = [one for one in seen["loss"] if seen["kernel"] == "newest" and one["source"].endswith(" runs")]
    assert [one for one in seen["loss"] if one not in lost] == []
    most = sum(one["count"] for one in lost if one["source"] == "tcp runs")
    mine = [r for r in seen["tcp_connect"] if r["pid"] == seen["pid"] and r["peer"].endswith(f":{seen['port']}")]
    closed = [r for r in seen["tcp_close"] if r["pid"] == seen["pid"]]
    for wanted, rows, column, value in (
        (guest.CONNECTS, mine, "result", "ok"),
        (guest.REFUSED, mine, "result", "failed"),
        (guest.CONNECTS, closed, "role", "client"),
        (guest.CONNECTS, closed, "role", "server"),
    ):
        assert wanted - most <= sum(r[column] == value for r in rows) <= wanted, (column, value, lost)


def test_real_clock_steps_have_size_and_actor(seen: dict[str, Any]) -> None:
    steps = [r for r in seen["clock_change"] if r["kind"] == "step"]
    assert [r["pid"] for r in steps] == [seen["pid"]] * 2
    for row, asked_s in zip(steps, (guest.STEP_S, -guest.STEP_S), strict=True):
        # the caller reads the clock, then sets it: emulation may take a while between the two
        assert abs(row["size_ns"] - asked_s * 10**9) < 500_000_000


@pytest.mark.parametrize("family", SLICE)
def test_a_part_of_a_familys_tests(kernel: tuple[str, Path, suite.Run], family: str) -> None:
    _, _, run = kernel
    mine = [r for r in run.results if suite.family_of(r.test) == family]
    assert {r.test for r in mine if r.outcome != "passed"} == set(), "\n".join(
        r.detail for r in mine if r.outcome != "passed"
    )
    assert len(mine) == len(SLICE[family]), run.outcome.output[-4000:] + run.outcome.console
