"""The brokers' process where something is wrong with it: it cannot be started, sends what is no message, does not die,
or the agent itself stood still.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.common.clocks import boot_ns
from agent.posix.supervisor import Restarts
from agent.queues.packing import SENT, TABLE, pack
from agent.queues.poller_process import BrokerPoller
from agent.queues.poller_worker import ALIVE, HEADER, MOST_FAILURES, PIECE_ROWS, Worker
from agent.queues.received import MalformedMessage, checked
from agent.queues.rounds import PART, Rounds
from tests.patience import PATIENCE, until
from tests.unit.test_asking import Kept


@pytest.fixture
def kept() -> Iterator[Kept]:
    one = Kept()
    yield one
    one.brokers.close()


def rows(**more: object) -> bytes:
    return pack([{"t_ns": 5, "system": "redis", **more}])


def timers(**more: object) -> bytes:
    return pack([{"t_ns": 5, "system": "redis", **more}], "timer_effect")


ROWS, TIMERS, ORDER = range(len(SENT))
GOOD = HEADER.pack(ROWS, 3) + rows()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        HEADER.pack(ROWS, 0),
        GOOD[:-1],
        HEADER.pack(ROWS, 1 << 63) + rows(),
        HEADER.pack(7, 0) + rows(),
        HEADER.pack(ROWS, 0) + rows(t_ns=4),
        HEADER.pack(ROWS, 0) + rows(t_ns=10),
        HEADER.pack(ROWS, 0) + rows(t_ns=None),
        HEADER.pack(ROWS, 0) + rows(system="kafka"),
        HEADER.pack(ROWS, 0) + rows(failure=99),
        HEADER.pack(ROWS, 0) + rows() * (PIECE_ROWS + 1),
        HEADER.pack(TIMERS, 0) + rows(),
        HEADER.pack(TIMERS, 0) + timers(t_ns=10),
        HEADER.pack(TIMERS, 0) + timers(kind=99),
        *(
            HEADER.pack(ALIVE, 0) + output
            for output in (b"", b"[]", b"{", b"\xff", b'{"a": 1}', b'{"a": "%s"}' % (b"x" * 201), b"[" * 100_000)
        ),
        HEADER.pack(ALIVE, 0) + json.dumps({str(i): "" for i in range(MOST_FAILURES + 1)}).encode(),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        checked(data, ["redis"], 4, 9)


def test_what_is_a_message_is_taken() -> None:
    message = checked(GOOD, ["redis"], 4, 9)
    assert (message.rows["t_ns"].tolist(), message.failures, message.dropped) == ([5], None, 3)
    message = checked(HEADER.pack(ALIVE, 0) + b'{"a": "b"}', (), 4, 9)
    assert (len(message.rows), message.failures) == (0, {"a": "b"})
    long = checked(HEADER.pack(ROWS, 0) + pack([{"t_ns": 5, "system": "n" * 20}]), ["n" * 20], 4, 9)
    assert long.rows.dtype == TABLE.dtype
    message = checked(HEADER.pack(TIMERS, 0) + timers(timers=0), ["redis"], 4, 9)
    assert (message.table, message.rows["t_ns"].tolist(), message.failures) == ("timer_effect", [5], None)
    order = pack([{"t_ns": 5, "system": "redis", "duplicates": 3}], "message_order")
    assert checked(HEADER.pack(ORDER, 0) + order, ["redis"], 4, 9).rows["duplicates"].tolist() == [3]


def liar(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """From now on the brokers' process runs this code, which has its socket as ``s``."""
    real = subprocess.Popen

    def popen(command: list[str], **more: object) -> subprocess.Popen[bytes]:
        body = f"import socket, sys, time; s = socket.socket(fileno=int(sys.argv[1]))\n{code}\ntime.sleep(60)"
        given = command[command.index("-m") + 2 :]
        return real([sys.executable, "-c", body, *given], **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("agent.posix.supervisor.subprocess.Popen", popen)


def test_one_that_sends_what_is_no_message_is_ended_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    liar(monkeypatch, "s.send(b'x')")
    kept = Kept()
    pid = kept.pid
    try:
        kept.until(kept.brokers.failures)
        assert (
            "ended (sent a malformed message: 1 bytes), and is started again" in kept.brokers.failures()["redis poller"]
        )
        kept.until(lambda: not os.path.exists(f"/proc/{pid}"))
        kept.until(lambda: kept.reported("unasked"))
    finally:
        kept.brokers.close()


def test_one_that_cannot_be_started_is_reported_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("agent.queues.poller_process.Restarts", lambda: Restarts(in_a_row=1))
    monkeypatch.setattr("agent.posix.supervisor.subprocess.Popen", refused)
    before = sorted(os.listdir("/proc/self/fd"))
    kept = Kept()
    try:
        kept.until(kept.brokers.failures)
        assert "cannot be started: Resource temporarily unavailable" in kept.brokers.failures()["redis poller"]
        kept.until(lambda: kept.reported("unasked"))
        kept.until(lambda: any(row["remedy"] for row in kept.rows["probe_status"]))
        assert b"the last of several in a row" in kept.rows["probe_status"][-1]["reason"]
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert "restart tickscope" in capfd.readouterr().err
    finally:
        kept.brokers.close()


def test_where_descriptors_run_out_it_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]  # without that of the listing
    lowest = next(n for n in range(len(held) + 1) if n not in held)
    more = [os.open("/dev/null", os.O_RDONLY) for _ in range(max(held) - lowest + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(more + held) + 3, hard))  # room for the settings, not for both ends
    try:
        brokers = BrokerPoller("redis", ("redis://127.0.0.1:1",), 0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in more:
            os.close(fd)
    try:
        assert brokers.process.restarts.why == "a process cannot be started: Too many open files"
        assert sorted(map(int, os.listdir("/proc/self/fd")))[:-1] == held
    finally:
        brokers.close()


class Undying(subprocess.Popen[bytes]):
    """On whom no signal acts, as in an uninterruptible sleep."""

    def send_signal(self, sig: int) -> None:
        pass


def test_who_does_not_die_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.posix.supervisor.subprocess.Popen", Undying)
    kept = Kept()
    kept.brokers.process.ends_s = 0.2
    pids = [kept.pid]
    try:
        os.kill(pids[0], signal.SIGSTOP)  # else it ends by itself, with its socket
        begin = time.monotonic()
        kept.brokers.use((kept.url, kept.url), 0.1)
        pids += [kept.pid]
        os.kill(pids[1], signal.SIGSTOP)
        assert pids[0] != pids[1]
        kept.brokers.close()
        assert time.monotonic() - begin < 3 * PATIENCE
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for child, _ in kept.brokers.process._ending:
            child.wait()


def test_they_are_asked_again_once_the_new_process_reports_it(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.again()
    os.kill(kept.pid, signal.SIGKILL)
    kept.until(kept.brokers.failures)
    liar(monkeypatch, "time.sleep(1)")
    kept.until(lambda: kept.brokers.process.restarts.count)
    kept.turn()
    for _ in range(50):
        kept.turn()
    assert "is started again" in kept.brokers.failures()["redis poller"]
    assert len(kept.reasons()) == 1


def test_without_a_broker_there_is_no_trouble(kept: Kept) -> None:
    kept.again()
    os.kill(kept.pid, signal.SIGKILL)
    kept.until(lambda: kept.brokers.failures() and kept.reasons())
    kept.brokers.use((), 0.1)
    kept.until(lambda: len(kept.reasons()) == 2)
    assert kept.reasons()[-1] == (3, b"")  # off
    assert kept.brokers.failures() == {}


def test_it_gets_nothing_of_the_environment_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/mine.pem")
    kept = Kept()
    try:
        kept.until(lambda: kept.reported("refused"))
        names = {line.partition(b"=")[0] for line in Path(f"/proc/{kept.pid}/environ").read_bytes().split(b"\0")} - {
            b""
        }
        assert {b"PYTHONPATH", b"SSL_CERT_FILE"} <= names
        assert names <= {b"PYTHONPATH", b"PATH", b"LC_ALL", b"MALLOC_ARENA_MAX", b"SSL_CERT_FILE", b"SSL_CERT_DIR"}
    finally:
        kept.brokers.close()


class Asked:
    """A server, whose polls fail where it has a reason."""

    def __init__(self, name: str, why: str = "") -> None:
        self.name, self.why, self.polls = name, why, 0

    def poll(self) -> int:
        self.polls += 1
        if self.why:
            raise ValueError(self.why)
        return self.polls

    def close(self) -> None:
        pass


def settled(queues: list[Asked]) -> dict[str, str]:
    """The failures once each was asked several times."""
    reported: dict[str, str] = {}

    def note(failures: dict[str, str]) -> None:
        reported.clear()
        reported.update(failures)

    rounds = Rounds(queues, 0.01, lambda *_: None, note)
    until(lambda: all(queue.polls >= 5 for queue in queues if queue.why != "unstarted"))
    rounds.close()
    return reported


class Costly(Asked):
    """A server with so many queues that a poll takes 20 ms of processor time."""

    def poll(self) -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        super().poll()


def test_a_server_whose_polls_are_costly_is_polled_more_seldom() -> None:
    cheap, costly = Asked("cheap"), Costly("costly")
    rounds = Rounds([cheap, costly], 0.01, lambda *_: None, lambda _: None)
    began = time.monotonic()
    until(lambda: costly.polls >= 4)
    lasted_s = time.monotonic() - began
    rounds.close()
    assert costly.polls == 4
    assert lasted_s >= 2 * 0.02 / PART  # the first one does not count: it imports and connects
    assert cheap.polls > 4 * costly.polls


def test_two_urls_of_one_server_have_a_failure_each() -> None:
    assert settled([Asked("a", "wrong"), Asked("a")]) == {"a": "ValueError: wrong"}
    assert settled([Asked("a"), Asked("a")]) == {}


def test_a_thread_that_cannot_be_started_is_that_servers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "second":
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    queues = [Asked("first"), Asked("second", "unstarted"), Asked("third")]
    assert settled(queues) == {"second": "not asked: can't start new thread"}
    assert [queue.polls > 0 for queue in queues] == [True, False, True]


def test_a_message_that_the_kernel_has_no_room_for_is_dropped_and_counted() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        worker = Worker(theirs, "redis", [], 1)
        worker._send(ROWS, rows() * 20_000)  # EMSGSIZE
        worker._send(ORDER, pack([{"t_ns": 5, "system": "redis"}] * 10_000, "message_order"))
        worker._send(ROWS, rows(t_ns=boot_ns()))
        assert HEADER.unpack_from(ours.recv(1 << 16)) == (ROWS, 30_000)


def test_what_was_found_of_messages_is_sent_also_after_a_pause() -> None:
    """The rows of the queues would show the pause of this process as a slow server; duplicates are seen once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        worker = Worker(theirs, "redis", [], 1)
        worker._late.append((time.monotonic(), 60.0))
        ours.settimeout(PATIENCE)
        row = {"t_ns": boot_ns(), "system": "redis"}
        worker._take(([row], [], [{**row, "duplicates": 3}]), time.monotonic() - 10)
        data = ours.recv(1 << 16)
        assert HEADER.unpack_from(data) == (ORDER, 1)
        assert len(data) == HEADER.size + len(pack([row], "message_order"))
