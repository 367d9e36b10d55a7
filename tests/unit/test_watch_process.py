"""The clock watch's process, hung: replaced, and given up. Real processes and sockets; no clock is stepped. One that is
stopped or killed: tests/kernel/test_watch_faults.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.clock import first, watch_process
from agent.clock.change import Change
from agent.clock.missed_notices import SOURCE, MissedNotices
from agent.clock.notices import NoticeSource
from agent.clock.watch import SLEEPERS
from agent.clock.watch_process import Unwatched, WatchMessage, WatchProcess
from agent.posix.child import fork
from tests.lab import sockets
from tests.patience import until

NOBODY = 65534
T = 10**12


class Watched:
    """A watch that is looked after as the agent's loop does. pids: whom the kernel programs would be told of."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o755)
        self.path = str(directory / "notices.sock")
        self.watch: WatchProcess = watch_process.start(
            fork("watch", first.serve), sockets.notices(directory / "notices.sock"), NOBODY, NOBODY
        )
        self.notices = NoticeSource(self.watch)
        self.watch.begin(-1)
        self.alive_at_once = bool(os.listdir(f"/proc/{self.watch.pid}/task")[SLEEPERS:])
        self.pids: list[int] = []
        self.reason = b""  # of the last row
        self.watch.follow(self.pids.append)
        self.until(self.serves)

    def serves(self) -> bool:
        """Someone who connects is accepted, and is gone again."""
        served = False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.connect(self.path)
            end = time.monotonic() + 2
            while not served and time.monotonic() < end:
                served = bool(self.notices.state()["subscribers"])
                self.turn()
        self.until(lambda: not self.notices.state()["subscribers"])
        return served

    def turn(self) -> None:
        self.watch.messages()
        time.sleep(0.01)
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for batch in self.notices.drain(now):
            self.reason = batch.rows["reason"][-1]

    def until(self, what: Callable[[], bool]) -> None:
        until(what, 20, 0, why=self.watch.state, turn=self.turn)

    def back(self) -> bool:
        return self.watch.alive and bool(self.watch.outages[-1].to_ns)

    def kill(self) -> None:
        os.kill(self.watch.pid, signal.SIGKILL)
        self.until(lambda: not self.watch.alive)

    def words(self) -> str:
        return str(self.watch.state()["watch"])


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    yield one
    pid = one.watch.pid
    one.watch.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_it_watches_as_soon_as_it_is_reported_to(watched: Watched) -> None:
    """A step between the agent's ``ready`` and the watch's first sleep would have no actor."""
    assert watched.alive_at_once


def test_an_agent_that_was_held_up_itself_does_not_blame_the_watch(watched: Watched) -> None:
    os.kill(watched.watch.pid, signal.SIGSTOP)
    time.sleep(watch_process.SILENT_S + 0.5)  # nobody looks
    watched.turn()
    assert not watched.watch.silent
    os.kill(watched.watch.pid, signal.SIGCONT)


def test_one_that_hangs_is_replaced(watched: Watched) -> None:
    watched.watch.child.hung_s = 2.2
    former = watched.watch.pid
    os.kill(former, signal.SIGSTOP)
    watched.until(lambda: not watched.watch.alive)
    watched.watch.child.hung_s = 30.0
    watched.until(watched.back)
    assert watched.serves()
    assert not os.path.exists(f"/proc/{former}")
    assert "(it sent no heartbeat)" in watched.words()


def test_given_up_it_reports_it_to_whoever_connects(watched: Watched) -> None:
    watched.watch.restarts.in_a_row = 1
    watched.kill()
    watched.until(watched.back)
    watched.kill()
    for _ in range(100):
        watched.turn()
    assert not watched.watch.alive
    assert "restart tickscope" in watched.words()
    assert "restart tickscope" in watched.notices.failures()["notices socket"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late, pytest.raises(ConnectionRefusedError):
        late.connect(watched.path)


def step(t_ns: int, after: int, kind: str = "step", size: int = 5000) -> Change:
    return Change(t_ns, kind, size_ns=size, err_ns=50, real_mono_after_ns=after)


def test_steps_that_no_watch_reported_are_lost_notices_and_others_are_not() -> None:
    outages = [Unwatched(T, T + 10**9), Unwatched(T + 10**11)]
    missed = MissedNotices(outages)
    message = WatchMessage(T - 5, 0, 777_000, 50, -1, 0)
    missed.note(message)
    assert missed.losses([step(T - 10, 1), step(T + 10**10, 2)], T) == []  # a watch was there
    assert missed.losses([step(T + 5, 3, kind="slew"), step(T + 5, 3, size=0)], T) == []
    missed.note(message._replace(t_ns=T + 7, real_mono_after_ns=900_000))  # just before it ended
    assert missed.losses([step(T + 8, 900_040)], T) == []
    (batch,) = missed.losses([step(T + 9, 777_000), step(T + 20, 5), step(T + 2 * 10**11, 6, kind="leap")], T)
    assert (batch.table, batch.rows["source"][0], batch.rows["count"][0]) == ("loss", SOURCE.encode(), 3)
    assert (batch.rows["from_ns"][0], batch.rows["to_ns"][0]) == (T + 9, T + 2 * 10**11)


def test_a_watch_that_is_stopped_does_not_hold_up_the_end(tmp_path: Path) -> None:
    one = Watched(tmp_path)
    os.kill(one.watch.pid, signal.SIGSTOP)
    one.watch.close()
    with contextlib.suppress(ChildProcessError):
        assert not os.waitpid(one.watch.pid, os.WNOHANG)[0]
