"""The supervisor, over real child processes that do what children do: live, end, hang, send nonsense, eat memory,
ignore the request to end.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from agent.posix.child import fork
from agent.posix.supervisor import IN_A_ROW, STEADY_S, ChildProcess, Forked, Restarts, Supervised, how
from tests.patience import PATIENCE, until

#: A child has its end of the socket as ``s``.
PRELUDE = "import os, resource, signal, socket, sys, time\ns = socket.socket(fileno=int(sys.argv[1]))\n"
BEATS = "while True:\n    s.send(b'beat')\n    time.sleep(0.1)\n"


class Rig:
    """A child that runs this code, supervised as the agent's loop does it."""

    def __init__(self, code: str, silent_s: float = 60.0, **more: float) -> None:
        self.ends = 0
        self.reasons: list[str] = []
        self.child = Supervised(
            "test",
            "is tested",
            lambda: spawned(code),
            self._over,
            silent_s=silent_s,
            restarts=Restarts(first_s=0.01, in_a_row=2),
            **more,  # type: ignore[arg-type]
        )
        self.child.start()

    def _over(self) -> None:
        self.ends += 1

    def turn(self) -> None:
        time.sleep(0.01)
        self.read()
        if self.child.due():
            self.child.check()
            for batch in self.child.report(1, "it is well", "attached"):
                self.reasons.append(batch.rows["reason"][0].decode())

    def read(self) -> None:
        try:
            while self.child.socket is not None:
                data = self.child.socket.recv(100)
                if not data:
                    self.child.drained = True
                    return
                if data == b"beat":
                    self.child.beat()
                else:
                    self.child.fail("sent a malformed message")
        except (BlockingIOError, ConnectionResetError):
            return

    def until(self, what: Callable[[], object]) -> None:
        until(what, 30, 0, why=lambda: (self.child.problem, self.child.restarts.why), turn=self.turn)


def spawned(code: str) -> tuple[ChildProcess, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs:
        fd = theirs.fileno()
        return (
            subprocess.Popen([sys.executable, "-c", PRELUDE + code, str(fd)], pass_fds=[fd], stderr=subprocess.DEVNULL),
            ours,
        )


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def begin(code: str, **more: float) -> Rig:
        made.append(Rig(code, **more))
        return made[-1]

    yield begin
    for one in made:
        pids = [p["pid"] for p in one.child.processes()]
        one.child.close(kill=True)
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


class Case(NamedTuple):
    """why: what ended it, in words."""

    code: str
    why: str
    silent_s: float = 60.0
    hung_s: float = 60.0


ENDS = {
    "exits at once": Case("sys.exit(3)", "exit status 3"),
    "exits after a while": Case("s.send(b'beat'); time.sleep(0.5)", "exit status 0"),
    "raises": Case("raise KeyError", "exit status 1"),
    "is killed": Case("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "ends by a real-time signal": Case("os.kill(os.getpid(), 40)", "signal 40"),
    "sends a malformed message": Case("s.send(b'x'); time.sleep(60)", "sent a malformed message"),
    "eats memory": Case(
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 28, 1 << 28)); bytearray(1 << 29)", "exit status 1"
    ),
    "hangs": Case("s.send(b'beat'); time.sleep(60)", "it sent no heartbeat", 0.3, 1.0),
    "never sends a heartbeat": Case("time.sleep(60)", "it sent no heartbeat", 0.3, 1.0),
    "stops itself": Case("s.send(b'beat'); os.kill(os.getpid(), signal.SIGSTOP)", "it sent no heartbeat", 0.3, 1.0),
    "closes its socket and ends": Case("s.close(); time.sleep(0.3); sys.exit(4)", "exit status 4"),
    "ends, but its child has its socket": Case(
        "if not os.fork():\n    time.sleep(3)\n    os._exit(0)\nsys.exit(5)", "exit status 5", 0.3, 60.0
    ),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_one_that_goes_wrong_is_reported_started_again_and_at_last_given_up(
    rig: Callable[..., Rig], case: Case
) -> None:
    one = rig(case.code, silent_s=case.silent_s, hung_s=case.hung_s)
    one.until(lambda: one.child.restarts.given_up and one.child.problem)
    assert one.child.restarts.why == case.why
    assert one.child.problem == f"the process that is tested is gone, the last of several in a row: {case.why}"
    assert (one.child.restarts.count, one.ends) == (2, 3)
    assert one.child.processes() == []
    assert one.child.failures() == {"test": one.child.problem}
    assert one.reasons[-1] == one.child.problem


def test_one_that_is_well_is_left_alone(rig: Callable[..., Rig]) -> None:
    one = rig(BEATS, silent_s=20.0 * PATIENCE)
    end = time.monotonic() + 1
    one.until(lambda: time.monotonic() > end)
    assert (one.reasons, one.ends, one.child.restarts.count, one.child.failures()) == ([], 0, 0, {})


def test_one_that_is_silent_for_a_while_is_reported_and_well_again(rig: Callable[..., Rig]) -> None:
    one = rig(BEATS, silent_s=1.0)
    one.until(lambda: one.child._beats)
    pid = one.child.processes()[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    one.until(lambda: one.reasons)
    assert one.child.silent and one.reasons == ["the process that is tested sends no heartbeat"]
    os.kill(pid, signal.SIGCONT)
    one.until(lambda: len(one.reasons) == 2)
    assert (one.reasons[1], one.child.processes()[0]["pid"]) == ("", pid)


def test_a_pause_of_the_loop_itself_is_no_silence(rig: Callable[..., Rig]) -> None:
    one = rig(BEATS, silent_s=1.5, hung_s=1.5)
    one.until(lambda: one.child._beats)
    os.kill(one.child.processes()[0]["pid"], signal.SIGSTOP)
    one.turn()
    one.read()
    time.sleep(2)
    one.turn()
    assert one.reasons == []


@pytest.mark.parametrize("code", ["time.sleep(600)", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
@pytest.mark.parametrize("variant", ["end", "renew", "close"])
def test_one_that_does_not_end_when_it_is_asked_to_is_killed(rig: Callable[..., Rig], code: str, variant: str) -> None:
    one = rig(code, ends_s=0.3)
    process = one.child.process
    assert process is not None
    {"end": lambda: one.child.end(kill=False), "renew": one.child.renew, "close": one.child.close}[variant]()
    until(lambda: process.poll() is not None, turn=one.child.reap)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [False, True])
def test_one_with_which_nothing_is_wrong_ends_by_itself(rig: Callable[..., Rig], stopped: bool) -> None:
    """Whoever watches this host takes a process that is killed for a fault."""
    one = rig("s.send(b'beat'); s.recv(1)", ends_s=30.0 * PATIENCE)
    one.until(lambda: one.child._beats)
    process = one.child.process
    assert process is not None
    if stopped:
        os.kill(process.pid, signal.SIGSTOP)
    one.child.close()
    assert process.returncode == 0


def test_one_that_cannot_be_started_is_reported_and_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    child = Supervised("test", "is tested", refused, silent_s=60.0, restarts=Restarts(first_s=0.01, in_a_row=1))
    child.start()
    until(
        lambda: child.problem.startswith("the process that is tested is gone"),
        turn=lambda: child.check() if child.due() else None,
    )
    (row,) = next(child.report(1, "well", "attached")).rows
    assert b"cannot be started: Resource temporarily unavailable" in row["reason"]
    assert b"restart tickscope" in row["remedy"]
    assert "restart tickscope" in capfd.readouterr().err


class Undying:
    """On whom no signal acts, as in an uninterruptible sleep."""

    pid, returncode = 0, None

    def poll(self) -> None:
        return None

    def send_signal(self, sig: int) -> None:
        """Nothing comes of it."""

    def kill(self) -> None:
        """Nothing comes of it."""


def test_of_those_that_do_not_die_only_some_are_replaced() -> None:
    started: list[Undying] = []

    def start() -> tuple[ChildProcess, None]:
        started.append(Undying())
        return started[-1], None  # type: ignore[return-value]

    child = Supervised("test", "is tested", start, silent_s=60.0, restarts=Restarts(first_s=0.0, in_a_row=None))
    child.start()
    for _ in range(20):
        child.fail("of no use")
        child._checked_s = -1.0
        assert child.due()
        child.check()
    assert len(started) == 4
    child.ends_s = 0.0
    child.close()


def serve(sock: socket.socket, _: int) -> None:
    """Ends as it is told to."""
    order = sock.recv(10)
    if order == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if order:
        os._exit(int(order))


@pytest.mark.parametrize(("order", "why"), [(b"7", "exit status 7"), (b"kill", "SIGKILL")])
def test_one_that_was_forked_early_is_supervised_like_others(order: bytes, why: str) -> None:
    sock, pid = fork("early", serve)
    child = Supervised("test", "is tested", lambda: None)
    child.adopt(Forked(pid), sock)
    assert child.processes() == [{"pid": pid, "role": "test"}]
    sock.send(order)
    until(lambda: child.process is None, turn=lambda: child.check() if child.due() else None)
    child.check()
    assert child.problem == f"the process that is tested is gone: {why}"
    assert not os.path.exists(f"/proc/{pid}")


def test_one_that_was_forked_early_ends_with_its_socket() -> None:
    sock, pid = fork("early", serve)
    child = Supervised("test", "is tested", lambda: None, ends_s=30.0 * PATIENCE)
    process = Forked(pid)
    child.adopt(process, sock)
    child.close()
    assert process.returncode == 0
    assert child._ending == []


def one_job(code: str, fault: Callable[[int], str]) -> Supervised:
    child = Supervised("test", "is tested", lambda: spawned(code), fault=fault, restarts=Restarts(60.0))
    child.start()
    return child


@pytest.mark.parametrize(
    ("code", "why"),
    [("", ""), ("sys.exit(3)", "it failed with 3"), ("time.sleep(600)", "it took longer than 1 s")],
    ids=["done", "fails", "hangs"],
)
def test_one_that_does_one_job_may_end(code: str, why: str) -> None:
    child = one_job(code, lambda status: f"it failed with {status}" if status else "")
    process = child.process
    assert process is not None
    child.wait(1 if why.startswith("it took") else 60 * PATIENCE)
    child.close()
    assert (child.restarts.why, child.process, process.poll() is None) == (why, None, False)
    assert child.restarts.due(time.monotonic()) == (not why)


def test_one_that_is_left_ends_by_itself() -> None:
    child = one_job("s.recv(1)", how)
    process, sock = child.process, child.socket
    assert process is not None and sock is not None
    child.leave()
    child.close(kill=True)
    assert os.waitpid(process.pid, os.WNOHANG) == (0, 0)
    sock.close()
    assert os.waitpid(process.pid, 0) == (process.pid, 0)


def test_how_a_process_ended() -> None:
    assert [how(code) for code in (3, -9, -40)] == ["exit status 3", "SIGKILL", "signal 40"]


def waits(restarts: Restarts, now_s: float) -> float:
    """How long after an end now the next one may be started, to a tenth of a second."""
    return next(i / 10 for i in range(10_000) if restarts.due(now_s + i / 10))


@pytest.mark.parametrize(
    ("restarts", "lives_s", "want", "given_up"),
    [
        (Restarts(), 1.0, [0.5, 1, 2, 4, 8], True),
        (Restarts(), STEADY_S, [0.5] * IN_A_ROW, False),
        (Restarts(30.0, 30.0, None), 1.0, [30.0] * IN_A_ROW, False),
        (Restarts(in_a_row=1), 1.0, [0.5], True),
    ],
)
def test_each_wait_is_longer_and_after_so_many_in_a_row_it_is_given_up(
    restarts: Restarts, lives_s: float, want: list[float], given_up: bool
) -> None:
    now, seen = 1000.0, []
    for _ in want:
        restarts.ended(now, "SIGKILL")
        seen.append(waits(restarts, now))
        now += seen[-1]
        restarts.started(now)
        now += lives_s
    assert seen == want
    assert not restarts.given_up
    restarts.ended(now, "SIGKILL")
    assert (restarts.given_up, restarts.count) == (given_up, len(want))
    assert not (given_up and restarts.due(now + 10**6))
