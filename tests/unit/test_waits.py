"""Which processes' waits are asked for, with a real map of the kernel's."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.correlate.reported import ReportedWaits
from agent.kernel import syscall
from agent.kernel.bpf import HashMap
from agent.kernel.loaded_families import Family
from agent.probes import discover
from agent.probes.syscalls import WatchedProcesses
from agent.tables import TABLES

S = 10**9
SIZE = 8


@pytest.fixture
def watched_map() -> Iterator[int]:
    """A hash map as bpf/syscalls.bpf.c has it, but of a few elements."""
    fd = syscall.bpf(
        0, syscall.attributes(struct.pack("<IIII", 1, 4, 8, SIZE))
    )  # BPF_MAP_CREATE of a BPF_MAP_TYPE_HASH
    assert fd >= 0, os.strerror(-fd)
    yield fd
    os.close(fd)


def processes(fd: int | None) -> WatchedProcesses:
    return WatchedProcesses(Family(discover()["syscalls"], maps={} if fd is None else {"syscalls_watched": fd}))


def reported(*pids: int) -> Batch:
    return make(
        "limiter_decision",
        len(pids),
        t_ns=1,
        pid=list(pids),
        source=TABLES["limiter_decision"].code("source", "socket"),
    )


def pids_in(fd: int) -> set[int]:
    return set(HashMap(fd, np.dtype([("pid", "<u4")]), np.dtype([("t_ns", "<u8")])).read()[0]["pid"].tolist())


def test_more_processes_than_the_map_holds_push_those_out_that_reported_longest_ago(watched_map: int) -> None:
    watched = ReportedWaits(processes(watched_map))
    for second, pid in enumerate([*range(1, SIZE + 1), 1, 2]):
        batch = reported(pid)
        assert list(watched(batch, second * S)) == [batch]
    assert pids_in(watched_map) == set(range(1, SIZE + 1))
    watched(reported(101, 102, 103), 20 * S)
    assert pids_in(watched_map) == {6, 7, 8, 1, 2, 101, 102, 103}
    watched(reported(3), 21 * S)
    assert pids_in(watched_map) == {7, 8, 1, 2, 101, 102, 103, 3}


def test_one_batch_of_more_processes_than_the_map_holds(watched_map: int) -> None:
    watched = ReportedWaits(processes(watched_map))
    batch = reported(*range(1, 3 * SIZE))
    assert list(watched(batch, S)) == [batch]
    assert len(pids_in(watched_map)) == SIZE


def test_what_has_not_reported_for_long_is_forgotten_also_without_a_map() -> None:
    watched = ReportedWaits(processes(None))
    watched(reported(*range(1, 600)), S)
    watched(reported(1000), 700 * S)
    assert list(watched._known) == [1000]


def test_processes_that_answer_late_are_followed_for_a_while(watched_map: int) -> None:
    """Of a wait that has begun before, too: it is recorded at its end."""
    late = [7]
    watched = ReportedWaits(processes(watched_map), lambda: late)
    assert stated(watched, wait_of(3, 10), 10) == []
    watched.follow_late(11 * S)
    assert pids_in(watched_map) == {7}
    assert stated(watched, wait_of(3, 12), 12) == [3 * S]
    assert stated(watched, wait_of(0.02, 12), 12) == []
    late.clear()
    watched.follow_late(15 * S)
    assert pids_in(watched_map) == {7}
    watched.follow_late(17 * S)
    assert pids_in(watched_map) == set()
    assert stated(watched, wait_of(3, 18), 18) == []


def test_the_last_wait_of_who_ended_another_ones_is_passed_on(watched_map: int) -> None:
    watched, batch = ReportedWaits(processes(watched_map)), wait_of(3, 10)
    batch.rows["blocked_ns"] = NULL_I64
    assert list(watched(batch, 10 * S)) == [batch]


@pytest.mark.parametrize(("waits_s", "followed"), [(0.4, {7}), (0.1, set())])
def test_who_owes_an_answer_is_followed_before_there_is_a_symptom(
    watched_map: int, waits_s: float, followed: set[int]
) -> None:
    watched = ReportedWaits(processes(watched_map))
    batch = make("service_latency", 2, t_ns=S, pid=[7, 8], waiting=[1, 0], max_ns=int(waits_s * S))
    assert list(watched(batch, S)) == [batch]
    assert pids_in(watched_map) == followed


def test_followed_processes_leave_room_for_those_that_report(watched_map: int) -> None:
    late = [100]
    watched = ReportedWaits(processes(watched_map), lambda: late)
    watched(reported(*range(1, SIZE + 1)), S)
    watched.follow_late(2 * S)
    assert pids_in(watched_map) == set(range(1, SIZE + 1))
    late[:] = [3]
    watched.follow_late(2 * S)
    watched(reported(200), 3 * S)  # in the place of the first
    late.clear()
    watched.follow_late(9 * S)
    assert pids_in(watched_map) == {*range(2, SIZE + 1), 200}


def wait_of(seconds: float, until_s: float) -> Batch:
    return make(
        "slow_syscall",
        1,
        t_ns=int(until_s * S),
        pid=7,
        tid=7,
        proc_start_ns=S,
        kind=TABLES["slow_syscall"].code("kind", "waiting"),
        duration_ns=int(seconds * S),
        blocked_ns=int(seconds * S),
    )


def decision_of(seconds: float, until_s: float) -> Batch:
    return make(
        "limiter_decision",
        1,
        t_ns=int(until_s * S),
        pid=7,
        tid=7,
        proc_start_ns=S,
        source=TABLES["limiter_decision"].code("source", "socket"),
        duration_ns=int(seconds * S),
    )


def stated(watched: ReportedWaits, batch: Batch, now_s: float) -> list[int]:
    return [int(n) for b in watched(batch, int(now_s * S)) if b.table == "slow_syscall" for n in b.rows["duration_ns"]]


def test_every_wait_of_a_call_that_was_tried_again_belongs_to_its_decision() -> None:
    """A resolver that does not answer: waits of five seconds, one after the other, in a decision that is reported when
    all is over.
    """
    watched = ReportedWaits(processes(None))
    for end_s in (105, 110, 115):
        assert stated(watched, wait_of(5, end_s), end_s) == []
    assert stated(watched, decision_of(15.1, 115.05), 115.1) == [5 * S] * 3


def test_waits_that_no_decision_can_have_any_more_are_let_go_of() -> None:
    watched = ReportedWaits(processes(None))
    for end_s in range(100, 300, 1):
        stated(watched, wait_of(1, end_s), end_s)
        stated(watched, wait_of(0.002, end_s), end_s)
    assert len(watched._waits) <= 12 + 3
    stated(watched, wait_of(1000, 2000), 2000)
    stated(watched, wait_of(0.002, 2061), 2061)
    assert len(watched._waits) == 1
