"""The clock watch stopped and killed: reported, waited for, replaced. Real steps (0.2 ms at most, undone) and real
subscribers. One that hangs: tests/unit/test_watch_process.py.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock.missed_notices import SOURCE
from agent.clock.notices import NoticeSource
from agent.clock.watch import SLEEPERS
from tests.kernel.clock_rig import Rig

pytestmark = pytest.mark.usefixtures("own_clock")
STEP_NS = 200_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    one.sources.insert(0, NoticeSource(one.watch))
    yield one
    if one.watch.alive:
        os.kill(one.watch.pid, signal.SIGCONT)
    one.close()


def step(rig: Rig, by_ns: int) -> int:
    return rig.python(f"assert step('raw_clock_adjtime', {by_ns}) >= 0")[0]


def kill(rig: Rig) -> int:
    pid = rig.watch.pid
    os.kill(pid, signal.SIGKILL)
    rig.until(lambda: not rig.watch.alive)
    return pid


def subscribe_again(rig: Rig) -> None:
    assert rig.subscriber.recv(1) == b""  # it was disconnected
    rig.subscriber.close()
    rig.subscriber = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    rig.subscriber.connect(str(rig.path))
    rig.subscriber.setblocking(False)


def running(rig: Rig) -> bool:
    return rig.watch.alive and not rig.watch.silent and bool(not rig.watch.outages or rig.watch.outages[-1].to_ns)


def lost(rig: Rig) -> int:
    rows = rig.rows("loss")
    return int(rows["count"][rows["source"] == SOURCE.encode()].sum())


def test_a_stopped_watch_is_reported_and_reports_of_the_step_when_it_goes_on(rig: Rig) -> None:
    os.kill(rig.watch.pid, signal.SIGSTOP)
    rig.until(lambda: rig.watch.silent)
    assert "sends no heartbeat; steps are found by comparison" in str(rig.watch.state()["watch"])
    rig.settle(0.3)
    assert rig.rows("notice_status")["reason"][-1].endswith(b"no notices are sent")
    pid = step(rig, STEP_NS)
    assert not rig.notices()
    assert len(rig.of(pid)) == 1
    os.kill(rig.watch.pid, signal.SIGCONT)
    rig.until(lambda: not rig.watch.silent)
    rig.settle()
    assert rig.watch.state()["watch"] == "running"
    (reported,) = rig.notices()
    assert abs(int(reported["size_ns"]) - STEP_NS) <= 2_000  # type: ignore[call-overload]
    assert rig.rows("notice_status")["reason"][-1] == b""
    assert lost(rig) == 0
    step(rig, -STEP_NS)


def test_a_killed_watch_is_started_again_and_steps_meanwhile_are_notices_lost(rig: Rig) -> None:
    step(rig, STEP_NS)
    assert len(rig.notices()) == 1
    former = kill(rig)
    assert "ended (SIGKILL), and is started again" in str(rig.watch.state()["watch"])
    assert not os.path.exists(f"/proc/{former}")  # it was waited for
    subscribe_again(rig)
    pid = step(rig, -STEP_NS)
    rig.until(lambda: running(rig))
    rig.settle()
    assert len(rig.of(pid)) == 1
    assert lost(rig) == 1
    assert not rig.notices()
    pid = step(rig, STEP_NS)
    (reported,) = rig.notices()
    assert reported["actor"]["pid"] == pid  # type: ignore[index]
    assert reported["id"] == 2  # it goes on counting
    assert lost(rig) == 1
    status = Path(f"/proc/{rig.watch.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    tasks = os.listdir(f"/proc/{rig.watch.pid}/task")
    assert sorted(os.sched_getscheduler(int(tid)) for tid in tasks) == [os.SCHED_OTHER] * 2 + [os.SCHED_RR] * SLEEPERS
    assert str(rig.watch.state()["watch"]).startswith("running; restarted 1 times, last ")
    assert rig.watch.state()["watch_restarts"] == 1
    step(rig, -STEP_NS)


def test_one_that_ends_again_and_again_is_given_up_and_whoever_connects_is_reported_so(rig: Rig) -> None:
    rig.watch.restarts.in_a_row = 1
    for _ in range(2):
        rig.until(lambda: running(rig))
        kill(rig)
    assert "restart tickscope" in str(rig.watch.state()["watch"])
    rig.settle(1.5)
    assert not rig.watch.alive
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(rig.path))
    pid = step(rig, STEP_NS)
    assert len(rig.of(pid)) == 1  # found by comparing
    assert lost(rig) == 1
    step(rig, -STEP_NS)
    assert lost(rig) == 2
    assert rig.rows("notice_status")["reason"][-1].startswith(b"the process that watches the clock is gone, ")
