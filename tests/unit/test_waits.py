"""Which processes' waits are asked for, with a real map of the kernel's."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.kernel import syscall
from agent.kernel.bpf import HashMap
from agent.kernel.load import Family
from agent.kernel.watched import WatchedProcesses
from agent.limiters.waits import Watched
from agent.probes import discover
from agent.tables import TABLES

S = 10**9
SIZE = 8


@pytest.fixture
def watched_map() -> Iterator[int]:
    """A hash map as bpf/syscalls.bpf.c has it, but of a few elements."""
    fd = syscall.bpf(0, syscall.attributes(struct.pack("<IIII", 1, 4, 8, SIZE)))  # BPF_MAP_CREATE of a BPF_MAP_TYPE_HASH
    assert fd >= 0, os.strerror(-fd)
    yield fd
    os.close(fd)


def processes(fd: int | None) -> WatchedProcesses:
    return WatchedProcesses(Family(discover()["syscalls"], maps={} if fd is None else {"syscalls_watched": fd}))


def reported(*pids: int) -> Batch:
    return make("limiter_decision", len(pids), t_ns=1, pid=list(pids), source=TABLES["limiter_decision"].code("source", "socket"))


def pids_in(fd: int) -> set[int]:
    return set(HashMap(fd, np.dtype([("pid", "<u4")]), np.dtype([("t_ns", "<u8")])).read()[0]["pid"].tolist())


def test_more_processes_than_the_map_holds_push_those_out_that_reported_longest_ago(watched_map: int) -> None:
    watched = Watched(processes(watched_map))
    for second, pid in enumerate([*range(1, SIZE + 1), 1, 2]):
        batch = reported(pid)
        assert list(watched(batch, second * S)) == [batch]
    assert pids_in(watched_map) == set(range(1, SIZE + 1))
    watched(reported(101, 102, 103), 20 * S)
    assert pids_in(watched_map) == {6, 7, 8, 1, 2, 101, 102, 103}
    watched(reported(3), 21 * S)
    assert pids_in(watched_map) == {7, 8, 1, 2, 101, 102, 103, 3}


def test_one_batch_of_more_processes_than_the_map_holds(watched_map: int) -> None:
    watched = Watched(processes(watched_map))
    batch = reported(*range(1, 3 * SIZE))
    assert list(watched(batch, S)) == [batch]
    assert len(pids_in(watched_map)) == SIZE


def test_what_has_not_reported_for_long_is_forgotten_also_without_a_map() -> None:
    watched = Watched(processes(None))
    watched(reported(*range(1, 600)), S)
    watched(reported(1000), 700 * S)
    assert list(watched._known) == [1000]
