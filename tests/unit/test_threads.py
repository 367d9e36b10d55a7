"""Numbers of threads in other pid namespaces: what looking for them may take, and what is remembered."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.columns import NULL_I64
from agent.limiters.threads import ALL_NS, Threads

_MANY = """
import sys, threading, time
threading.stack_size(65536)
for i in range(int(sys.argv[1])):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def contained(threads: int) -> Iterator[int]:
    """The host's pid of a process with that many threads in a pid namespace of its own."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _MANY, str(threads - 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None and inside.stdout.readline() == b"ready\n"
        try:
            yield int(Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text())
        finally:
            inside.kill()


def test_a_process_with_many_threads_holds_nobody_up() -> None:
    """1,000 threads, and each second somebody who is none of them: the looks stay short, and go on until all are
    known.
    """
    reported, took, known = Threads(), list[float](), list[int]()
    with contained(1000) as pid:
        tasks = [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # in order of their start: numbers wrap around
        second, since = 10**9, time.monotonic()
        for _ in range(200):
            second += 10**9
            began = time.thread_time()
            reported.host(pid, 1, 1000, 99_999, second)
            took.append(time.thread_time() - began)
            time.sleep(0.01)
        seconds = time.monotonic() - since
        known = [n for n in range(1, 1001) if reported.host(pid, 1, 1000, n, second) != NULL_I64]
    assert (
        sum(each for each in took if each > 0.0005) < 2 * (seconds + 2) * ALL_NS / 4 / 1e9
    )  # a last look may be paid back later
    assert reported.skipped_reads > len(took) / 2
    assert 1 <= len(known) <= 1000  # a busy machine uses up the time that reading may take
    assert [reported.host(pid, 1, 1000, n, second) for n in known] == tasks[: len(known)]


def test_one_user_s_looking_costs_nobody_else_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.limiters.threads.ALL_NS", 4_000_000)
    reported = Threads()
    with contained(200) as many, contained(2) as few:
        reported.host(many, 1, 1000, 99_999, 10**9)
        assert reported.host(few, 1, 1000, 1, 10**9) == NULL_I64
        assert reported.host(few, 1, 1001, 1, 10**9) == few
    assert reported.skipped_reads == 2


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was not asked for the longest is forgotten first."""
    monkeypatch.setattr("agent.limiters.threads.MAX_NUMBERS", 10)
    monkeypatch.setattr("agent.limiters.threads.ALL_NS", 10**10)
    reported = Threads()
    with contained(4) as pid:
        for start in (1, 2, 1, 3):
            assert reported.host(pid, start, 0, 1, 10**9) == pid
    assert [start for _, start in reported._known] == [1, 3]
    assert reported.skipped_reads == 0
