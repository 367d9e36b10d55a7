"""The notice socket: many subscribers, acknowledgements, and subscribers that mean no good. Real sockets, no clock is
stepped.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.clock import subscribers
from agent.clock.settings import HookSettings
from agent.clock.subscribers import SUBSCRIBERS, Subscribers
from agent.columns import NULL_I64
from agent.common.settings import Place, read
from agent.errors import AgentError
from tests.lab import sockets
from tests.patience import until

T = 10**12


class Server:
    """Subscribers served in a thread, and what they report."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "notices.sock")
        self.listener = sockets.notices(directory / "notices.sock")
        self.reports, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reports.settimeout(20)
        self.stop, until = socket.socketpair()
        self.subscribers = Subscribers(self.listener, report)
        self.thread = threading.Thread(target=self.subscribers.serve, args=(until.fileno(),))
        self._keep = (report, until)
        self.thread.start()

    def client(self) -> socket.socket:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.settimeout(20)
        one.connect(self.path)
        return one

    def step(self, t_ns: int = T) -> None:
        self.subscribers.send_notice({"v": 1, "kind": "step", "size_ns": 5, "t_ns": t_ns}, t_ns)

    def until(self, **wanted: object) -> dict[str, object]:
        """The first report that says this."""
        while True:
            state: dict[str, object] = json.loads(self.reports.recv(1 << 16))
            if all(state[key] == value for key, value in wanted.items()):
                return state

    def close(self) -> None:
        self.stop.close()
        self.thread.join()
        for each in (self.listener, self.reports, *self._keep):
            each.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def line(sock: socket.socket) -> dict[str, object]:
    data = b""
    while not data.endswith(b"\n"):
        data += sock.recv(1)
    return dict(json.loads(data))


def ack(sock: socket.socket, number: object, limiter: object = "api") -> None:
    sock.sendall(json.dumps({"ack": number, "limiter": limiter}).encode() + b"\n")


#: A process of that name, which acknowledges one notice.
NAMED = r"""
import ctypes, json, socket, sys
ctypes.CDLL(None).prctl(15, b"\xff\xfe", 0, 0, 0)
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
print(flush=True)
sock.sendall(json.dumps({"ack": json.loads(sock.makefile().readline())["id"]}).encode() + b"\n")
sys.stdin.read()
"""


def test_a_subscriber_whose_name_is_no_text_gets_notices_like_the_others(server: Server) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED, server.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as named:
        assert named.stdout is not None
        named.stdout.readline()
        server.until(subscribers=1)
        server.step()
        assert server.until(acknowledged=1)["last_ack"]["comm"] == r"\xff\xfe"  # type: ignore[index]
        named.communicate()


def test_one_that_cannot_be_checked_is_turned_away_and_the_next_one_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(_: object) -> tuple[int, int]:
        raise ValueError("whatever")

    with monkeypatch.context() as patched:
        patched.setattr(subscribers, "peer", wrong)
        assert server.client().recv(1) == b""
    client = server.client()
    server.until(subscribers=1)
    server.step()
    assert line(client)["id"] == 1


def test_101_subscribers_each_get_every_notice_and_acknowledge(server: Server) -> None:
    clients = [server.client() for _ in range(101)]
    server.until(subscribers=101)
    for i in range(7):
        server.step(T + i)
    server.until(sent=707, pending=707)
    for i, one in enumerate(clients):
        for k in range(7):
            notice = line(one)
            assert (notice["id"], notice["t_ns"], notice["v"]) == (k + 1, T + k, 1)
            ack(one, notice["id"] if i % 2 else notice["t_ns"], f"limiter {i}")
    state = server.until(pending=0)
    assert state["acknowledged"] == 707
    assert (state["malformed"], state["unknown"], state["dropped"], state["waiting"]) == (0, 0, 0, [])
    for one in clients:
        one.close()
    assert server.until(subscribers=0)["dropped"] == 0


def test_who_has_not_acknowledged_is_named(server: Server) -> None:
    quick, late = server.client(), server.client()
    server.until(subscribers=2)
    server.step(T)
    ack(quick, line(quick)["id"])
    ack(late, 0, "checkout")
    state = server.until(pending=1, acknowledged=1, unknown=1)
    (entry,) = state["waiting"]  # type: ignore[misc]
    assert (entry["limiter"], entry["pending"], entry["since_ns"]) == ("checkout", 1, T)
    assert entry["pid"] > 0 and entry["comm"]
    assert state["last_ack"]["limiter"] == "api"  # type: ignore[index]
    assert state["last_ack"]["took_ns"] > 0 or state["last_ack"]["id"] == 1  # type: ignore[index]
    late.close()
    assert server.until(subscribers=1)["pending"] == 0
    quick.close()


def test_a_subscriber_that_only_listens_has_nothing_pending(server: Server) -> None:
    one = server.client()
    one.shutdown(socket.SHUT_WR)
    server.until(subscribers=1)
    time.sleep(0.1)
    server.step()
    assert line(one)["id"] == 1
    assert server.until(sent=1)["pending"] == 0
    one.close()
    server.until(subscribers=0)


@pytest.mark.parametrize(
    "counts",
    [
        b"\n",
        b"no\n",
        b"{}\n",
        b"[1]\n",
        b'{"ack": "1"}\n',
        b'{"ack": 1, "limiter": 7}\n',
        b'{"ack": true}\n',
        b"\xff\xfe\n",
        b"[" * 1000 + b"\n",
        b"1\n",
        b"x" * 3000,
    ],
)
def test_what_is_no_acknowledgement_is_counted_and_harms_nobody(server: Server, counts: bytes) -> None:
    bad, good = server.client(), server.client()
    bad.sendall(counts)
    server.until(malformed=1, subscribers=2)
    server.step()
    for one in (bad, good):
        ack(one, line(one)["id"])
    assert server.until(acknowledged=2)["pending"] == 0
    bad.close()
    good.close()


def test_one_that_writes_without_end_is_dropped(server: Server) -> None:
    bad, good = server.client(), server.client()
    with contextlib.suppress(ConnectionError):
        for _ in range(1000):
            bad.sendall(b'{"ack": 1}\n' * 100)
    state = server.until(noisy=1)
    assert (state["subscribers"], state["dropped"]) == (1, 1)
    assert state["unknown"] < 100  # type: ignore[operator]
    server.step()
    assert line(good)["id"] == 1
    bad.close()
    good.close()


def test_one_that_does_not_read_is_dropped_and_the_others_miss_nothing(server: Server) -> None:
    slow, good = server.client(), server.client()
    server.until(subscribers=2)
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.extend(line(good)["id"] for _ in range(997)))
    reader.start()
    for i in range(997):
        server.step(T + i)
        time.sleep(2e-4)
    reader.join()
    assert seen == list(range(1, 998))
    assert server.until(slow=1, pending=997)["dropped"] == 1
    slow.close()
    good.close()


def test_one_too_many_is_refused_and_counted(server: Server) -> None:
    clients = [server.client() for _ in range(SUBSCRIBERS)]
    server.until(subscribers=SUBSCRIBERS)
    extra = server.client()
    assert extra.recv(1) == b""
    assert server.until(refused=1)["subscribers"] == SUBSCRIBERS
    for one in (extra, *clients):
        one.close()


MANY = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = []
for _ in range(300):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect("notices.sock")
print("held", flush=True)
sys.stdin.read()
"""


def test_another_user_cannot_push_out_subscribers_nor_keep_them_away(server: Server) -> None:
    early = [server.client() for _ in range(100)]
    server.until(subscribers=100)
    directory = str(Path(server.path).parent)
    with subprocess.Popen(
        [sys.executable, "-c", MANY, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nobody:
        assert nobody.stdout is not None
        assert nobody.stdout.readline() == "held\n"
        state = server.until(subscribers=100 + SUBSCRIBERS // 4, refused=300 - SUBSCRIBERS // 4)
        assert state["dropped"] == 300 - SUBSCRIBERS // 4
        late = [server.client() for _ in range(SUBSCRIBERS - 100 - SUBSCRIBERS // 4)]
        server.until(subscribers=SUBSCRIBERS)
        server.step()
        for one in (*early, *late):
            assert line(one)["id"] == 1
            one.close()
        nobody.communicate()


def test_without_descriptors_nobody_is_lost(server: Server) -> None:
    """Who connects then waits until there are some again."""
    client = socket.socket(socket.AF_UNIX)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        client.connect(server.path)
        time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)
    server.until(subscribers=1)
    client.close()


def test_a_name_cannot_write_to_a_terminal(server: Server) -> None:
    one = server.client()
    server.until(subscribers=1)
    server.step()
    ack(one, line(one)["id"], "a\x1b[31m\ud800" + "b" * 500)
    name = server.until(acknowledged=1)["last_ack"]["limiter"]  # type: ignore[index]
    assert name == "a?[31m?" + "b" * 41
    one.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_stop_the_server(tmp_path_factory: pytest.TempPathFactory, counts: list[bytes]) -> None:
    server = Server(tmp_path_factory.mktemp("n"))
    try:
        good = server.client()
        server.until(subscribers=1)
        one = server.client()
        for piece in counts:
            with contextlib.suppress(ConnectionError):
                one.sendall(piece)
        one.close()
        server.step()
        ack(good, line(good)["id"])
        server.until(acknowledged=1)
        good.close()
    finally:
        server.close()


def test_a_report_becomes_a_row_and_status(server: Server) -> None:
    from types import SimpleNamespace

    from agent.clock.notices import NoticeSource

    server.reports.setblocking(False)
    watch = SimpleNamespace(reports=server.reports, alive=True, child=SimpleNamespace(state=lambda: "running"))
    source = NoticeSource(watch)  # type: ignore[arg-type]
    (first,) = source.drain(10**9)
    assert (first.rows["sent"][0], first.rows["pending"][0], first.rows["failed"][0]) == (0, 0, NULL_I64)
    one = server.client()
    until(lambda: source.state()["subscribers"] == 1)
    server.step()
    line(one)
    until(lambda: source.state()["sent"] == 1)
    (row,) = source.drain(2 * 10**9)
    assert (row.rows["sent"][0], row.rows["pending"][0], row.rows["subscribers"][0]) == (1, 1, 1)
    assert list(source.drain(3 * 10**9)) == []
    one.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"exce": "/bin/true"}, ("notices.exce", "did you mean exec")),
        ({"exec": "true"}, ("notices.exec", "absolute path")),
        ({"exec": 3}, ("notices.exec", "one text or as a list")),
        ({"exec": "/bin/echo 'x"}, ("notices.exec", "No closing quotation")),
        ({"timeout_s": True}, ("notices.timeout_s", "0.1 and 60")),
        ({"timeout_s": 0}, ("notices.timeout_s", "0.1 and 60")),
    ],
)
def test_a_wrong_setting_reports_which(settings: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(AgentError) as raised:
        read(HookSettings, settings, Place(("notices",)))
    assert raised.value.exit_code == 2
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_right_settings() -> None:
    assert read(HookSettings, {}) == HookSettings()
    for command in ("/bin/a 'b c'", ["/bin/a", "b c"]):
        assert read(HookSettings, {"exec": command, "timeout_s": 5}) == HookSettings(("/bin/a", "b c"), 5)
