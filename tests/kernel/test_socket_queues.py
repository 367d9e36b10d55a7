"""Kernel socket queues against real sockets, and our decoding against pyroute2's."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.columns import NULL_I64
from agent.common.address import peer_of, with_port
from agent.lab.stage.netns import Namespace
from agent.probes.tcp import Connections, Listeners
from agent.queues.netlink import INET_DIAG_MSG, LISTEN, STATES, qdiscs, tcp_sockets
from agent.queues.older import OlderSockets
from agent.queues.sockets import TABLE, SocketQueues
from agent.store.hot import HotStore
from tests.kernel.conftest import Attached


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    server = socket.socket(socket.AF_INET6 if ":" in request.param else socket.AF_INET)
    server.bind((request.param, 0))
    server.listen(17)
    yield server
    server.close()


def rows_of(kind: str, queues: SocketQueues | None = None) -> np.ndarray:
    (batch,) = (queues or SocketQueues(max_listeners=4096)).poll()
    assert batch.table == "socket_queue"
    rows: np.ndarray = batch.rows[batch.rows["kind"] == TABLE.code("kind", kind)]
    return rows


def test_accept_queue_counts_those_who_wait(listener: socket.socket) -> None:
    address = listener.getsockname()[:2]
    clients = [socket.create_connection(address) for _ in range(13)]
    rows = rows_of("accept")
    assert set(rows["netns"]) == {os.stat("/proc/self/ns/net").st_ino}
    (row,) = rows[rows["sport"] == address[1]]
    assert (row["queue"], row["limit"]) == (13, 17)
    assert row["family"] == TABLE.code("family", "ipv6" if listener.family == socket.AF_INET6 else "ipv4")
    expected = socket.inet_pton(listener.family, address[0])
    assert row["saddr"].tobytes() == (expected if len(expected) == 16 else b"\0" * 10 + b"\xff\xff" + expected)
    assert row["netns"] == os.stat("/proc/self/ns/net").st_ino
    assert row["sock_id"] == struct.unpack("=Q", listener.getsockopt(socket.SOL_SOCKET, 57, 8))[0]  # SO_COOKIE
    assert row["role"] == TABLE.code("role", "server")
    assert row["dport"] == NULL_I64
    listener.accept()[0].close()
    rows = rows_of("accept")
    assert rows["queue"][rows["sport"] == address[1]].tolist() == [12]
    for client in clients:
        client.close()


def test_overflowing_the_accept_queue_is_counted_for_the_socket_that_drops(listener: socket.socket) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        before = rows_of("accept")
        pending = []
        for _ in range(7):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            pending.append(client)
        after = rows_of("accept")
        (row,) = after[after["sport"] == port]
        assert (row["queue"], row["limit"]) == (2, 1)  # the kernel lets one more in than the backlog says
        assert row["overflows"] >= before["overflows"][0] + 5
        assert row["drops"] >= 5
        assert after["drops"][after["sport"] == listener.getsockname()[1]].tolist() == [0]
        for client in pending:
            client.close()


def fill(client: socket.socket) -> int:
    """Sends until the kernel takes no more; returns the bytes it took."""
    sent = 0
    while True:
        try:
            sent += client.send(bytes(65536))
        except BlockingIOError:
            return sent


def test_a_backed_up_connection_is_seen_from_both_ends(listener: socket.socket) -> None:
    client = socket.create_connection(listener.getsockname()[:2])
    accepted, _ = listener.accept()
    with closing(client), closing(accepted):
        assert not np.isin(rows_of("connection")["sport"], [client.getsockname()[1]]).any()
        client.setblocking(False)
        sent = fill(client)
        rows = rows_of("connection", SocketQueues(threshold_bytes=1, top=4096))
        port, peer_port = client.getsockname()[1], listener.getsockname()[1]
        (out,) = rows[(rows["sport"] == port) & (rows["dport"] == peer_port)]
        (into,) = rows[(rows["sport"] == peer_port) & (rows["dport"] == port)]
        assert out["send_q_bytes"] + into["recv_q_bytes"] >= sent
        assert out["recv_q_bytes"] == 0
        assert out["queue"] == out["send_q_bytes"]
        assert (out["role"], into["role"]) == (TABLE.code("role", "client"), TABLE.code("role", "server"))
        assert out["peer"].tobytes() == out["daddr"].tobytes() + peer_port.to_bytes(2, "little")
        assert out["daddr"].tobytes() == into["saddr"].tobytes()
        top = rows_of("connection", SocketQueues(threshold_bytes=1, top=1))
        assert len(top) == 1
        rows = rows_of(
            "connection", SocketQueues(threshold_bytes=1, top=4096)
        )  # the kernel may still be moving bytes to the receiver
        assert top["queue"][0] >= rows["queue"][(rows["sport"] == port) & (rows["dport"] == peer_port)][0]


def test_many_sockets_are_all_found() -> None:
    """More than one datagram of a dump, two families, so that both ways of finding the messages are used."""
    with socket.socket() as server, socket.socket(socket.AF_INET6) as server6:
        server.bind(("127.0.0.1", 0))
        server6.bind(("::1", 0))
        server.listen(1000)
        server6.listen(1000)
        pairs = [socket.create_connection(server.getsockname()) for _ in range(401)]
        pairs6 = [socket.create_connection(server6.getsockname()[:2]) for _ in range(7)]
        sockets, cgroups, _ = tcp_sockets()
        port, port6 = server.getsockname()[1], server6.getsockname()[1]
        assert (sockets["dport"] == port).sum() == 401
        assert (sockets["dport"] == port6).sum() == 7
        assert sockets["rqueue"][(sockets["sport"] == port) & (sockets["state"] == LISTEN)].tolist() == [401]
        own = cgroups[np.isin(sockets["sport"], [p.getsockname()[1] for p in pairs + pairs6])]
        assert len(set(own.tolist())) == 1
        for client in pairs + pairs6:
            client.close()


def test_layout_and_answers_agree_with_pyroute2(listener: socket.socket) -> None:
    pyroute2 = pytest.importorskip("pyroute2")
    from pyroute2.netlink.diag import inet_diag_msg

    offset, places = 0, {}
    for name, form in inet_diag_msg.fields:
        places[name] = offset
        offset += struct.calcsize(form if form[0] in "<>=" else "=" + form)
    assert offset == INET_DIAG_MSG.itemsize
    for name, ours in (
        ("idiag_sport", "sport"),
        ("idiag_src", "src"),
        ("idiag_cookie", "cookie"),
        ("idiag_rqueue", "rqueue"),
        ("idiag_inode", "inode"),
    ):
        assert INET_DIAG_MSG.fields is not None
        assert places[name] == INET_DIAG_MSG.fields[ours][1]
    clients = [socket.create_connection(listener.getsockname()[:2]) for _ in range(5)]
    with pyroute2.DiagSocket() as diag:
        diag.bind()
        theirs = {
            m["idiag_cookie"]: (
                m["idiag_sport"],
                m["idiag_dport"],
                m["idiag_rqueue"],
                m["idiag_wqueue"],
                m["idiag_inode"],
            )
            for m in diag.get_sock_stats(family=listener.family, states=STATES)
            if m["idiag_sport"] == listener.getsockname()[1]
        }
    found, _, _ = tcp_sockets()
    found = found[(found["sport"] == listener.getsockname()[1]) & (found["family"] == listener.family)]
    ours_by_cookie = {
        int(m["cookie"]): tuple(int(m[n]) for n in ("sport", "dport", "rqueue", "wqueue", "inode")) for m in found
    }
    assert len(ours_by_cookie) == 6
    assert ours_by_cookie == theirs
    for client in clients:
        client.close()


def test_devices_agree_with_pyroute2() -> None:
    pyroute2 = pytest.importorskip("pyroute2")
    with pyroute2.IPRoute() as route:
        theirs = sorted(
            (q["index"], q["parent"], q.get_attr("TCA_KIND")) for q in route.get_qdiscs() if q.get_attr("TCA_STATS2")
        )
    ours = sorted((q.ifindex, q.parent, q.kind) for q in qdiscs())
    assert ours == theirs
    assert b"lo" in rows_of("qdisc")["device"].tolist()


def test_no_privilege_is_needed(listener: socket.socket) -> None:
    client = socket.create_connection(listener.getsockname()[:2])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            rows = rows_of("accept")
            os.write(writer, b"%d" % rows["queue"][rows["sport"] == listener.getsockname()[1]][0])
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 16) == b"1"
    os.close(reader)
    client.close()


def verb(*arguments: str) -> list[dict[str, object]]:
    from click.testing import CliRunner

    from agent.cli.queues import command

    result = CliRunner().invoke(command, [*arguments, "-o", "json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert isinstance(rows, list)
    return rows


def test_the_verb_shows_the_latest_poll_and_now_agrees(listener: socket.socket, tmp_path: Path) -> None:
    port = listener.getsockname()[1]
    store = HotStore(tmp_path, Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "here", seal_command=())
    clients = []
    for n in (3, 7):
        clients += [socket.create_connection(listener.getsockname()[:2]) for _ in range(n)]
        lag = make(
            "queue_lag",
            1,
            t_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            system="redis",
            destination="jobs",
            consumer_group="g",
            lag_messages=n,
            exact=1,
        )
        store.append([*SocketQueues().poll(), lag])
    stored, now = verb("--store", str(tmp_path)), verb("--now")
    store.close()
    assert [(r["queue"], r["consumer_group"], r["length"], r["exact"]) for r in stored if r["system"] == "redis"] == [
        ("jobs", "g", 7, True)
    ]
    for rows in (stored, now):
        assert [
            (r["queue"], r["length"], r["limit"])
            for r in rows
            if r["system"] == "accept" and str(r["queue"]).endswith(f":{port}")
        ] == [(with_port(listener.getsockname()[0], port), 10, 17)]
        assert "lo" in [r["queue"] for r in rows if r["system"] == "qdisc"]
    for client in clients:
        client.close()


LISTENER = """
import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen(17)
print(s.getsockname()[1], flush=True)
while True:
    c = s.accept()[0]
    c.recv(1)
    c.close()
"""


@contextmanager
def listening(port: int = 0) -> Iterator[tuple[int, int]]:
    """(pid, port) of a process that listens."""
    process = subprocess.Popen([sys.executable, "-c", LISTENER, str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def use(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"x")
        assert client.recv(1) == b""


#: fd of a listening socket. Answers each connection with its end.
WORKER = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    with listener.accept()[0] as connection:
        connection.recv(1)
"""


@contextmanager
def forked(listener: socket.socket) -> Iterator[int]:
    """pid of a worker of this process."""
    argv = [sys.executable, "-c", WORKER, str(listener.fileno())]
    with subprocess.Popen(argv, pass_fds=[listener.fileno()]) as process:
        yield process.pid
        process.kill()


def test_an_accept_queue_belongs_to_the_process_that_listens(attach: Callable[..., Attached]) -> None:
    with listening() as before:
        attached = attach("tcp")
        owners = Listeners(attached.loaded).name

        def accept_rows() -> np.ndarray:
            return rows_of("accept", SocketQueues(max_listeners=4096, name_owners=owners))

        with listening() as after, listening() as shared, listening(shared[1]):

            def owner(port: int) -> tuple[int, bytes]:
                row = (found := accept_rows())[found["sport"] == port][0]
                return int(row["pid"]), row["comm"]

            comm = Path(f"/proc/{after[0]}/comm").read_bytes().strip()
            assert owner(after[1]) == (after[0], comm)
            rows = accept_rows()
            start = rows["proc_start_ns"][rows["sport"] == after[1]][0] // 10**7
            assert start == int(Path(f"/proc/{after[0]}/stat").read_text().rpartition(")")[2].split()[19])
            assert owner(shared[1]) == (NULL_I64, b""), "two processes listen there"
            assert owner(before[1])[0] in (NULL_I64, before[0])
            use(before[1])
            assert owner(before[1]) == (before[0], comm)
            with socket.create_server(("127.0.0.1", 0)) as ours, forked(ours), forked(ours):
                for _ in range(20):
                    use(ours.getsockname()[1])
                assert owner(ours.getsockname()[1])[0] == os.getpid(), "its workers accept"
        with socket.socket() as mine:
            mine.bind(("127.0.0.1", after[1]))
            mine.listen()
            assert owner(after[1])[0] == os.getpid(), "the one before has closed it"


def test_rows_are_repeated_only_while_nothing_is_queued_and_no_segment_moves() -> None:
    """In a network namespace of its own, where nobody else's segments move."""
    namespace = Namespace()
    with namespace.entered():
        queues, server = SocketQueues(), socket.create_server(("127.0.0.1", 0))

        def waiting() -> list[int]:
            return rows_of("accept", queues)["queue"].tolist()  # type: ignore[no-any-return]

        assert waiting() == [0]
        times = rows_of("accept", queues)["t_ns"], rows_of("accept", queues)["t_ns"]
        assert times[0] < times[1]
        late = socket.create_server(("127.0.0.1", 0))  # which moves no segment
        assert waiting() == [0]
        with socket.create_connection(server.getsockname()):
            assert sorted(waiting()) == [0, 1]
            server.accept()[0].close()  # what is not empty is listed again
            assert sorted(waiting()) == [0, 0]
        server.close()
        late.close()
    namespace.close()


#: Connects, or accepts, as often as told; sends until no more is taken, and reads a little first where told. Waits for
#: its end of stdin.
END = """
import socket, sys
role, port, n, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ends = []
if role == "server":
    l = socket.create_server(("127.0.0.1", 0), backlog=n); print(l.getsockname()[1], flush=True)
    for _ in range(n): ends.append(l.accept()[0])
else:
    for _ in range(n): ends.append(socket.create_connection(("127.0.0.1", port)))
for s in ends:
    if first: s.recv(1) if role == "server" else s.send(b"x")
    s.setblocking(False)
    try:
        while role == "client" and s.send(bytes(65536)): pass
    except BlockingIOError: pass
print("full", flush=True); sys.stdin.readline()
"""


@contextmanager
def backed_up(n: int, first: bool) -> Iterator[tuple[int, int, int]]:
    """(port, the server's pid, the client's) of n connections whose server does not read on, in processes of their
    own.
    """

    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", END, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    server = start("server", 0, n, int(first))
    assert server.stdout is not None
    port = int(server.stdout.readline())
    client = start("client", port, n, int(first))
    try:
        assert client.stdout is not None
        assert (server.stdout.readline(), client.stdout.readline()) == ("full\n", "full\n")
        yield port, server.pid, client.pid
    finally:
        for one in (client, server):
            one.kill()
            one.communicate()


def owners_of(queues: SocketQueues, port: int) -> tuple[list[int], list[int]]:
    """pids of (clients', servers') rows of connections to a port."""
    rows = rows_of("connection", queues)
    return rows["pid"][rows["dport"] == port].tolist(), rows["pid"][rows["sport"] == port].tolist()


def test_a_backed_up_connection_belongs_to_the_process_that_uses_it(attach: Callable[..., Attached]) -> None:
    attached = attach("tcp")
    with backed_up(24, first=False) as (port, server, client):
        queues = SocketQueues(threshold_bytes=1, top=4096, name_users=Connections(attached.loaded).name)
        assert owners_of(queues, port) == ([client] * 24, [server] * 24)
        rows = rows_of("connection", queues)
        row = rows[rows["dport"] == port][0]
        assert row["comm"] == Path(f"/proc/{client}/comm").read_bytes().strip()
        assert row["proc_start_ns"] // 10**7 == int(
            Path(f"/proc/{client}/stat").read_text().rpartition(")")[2].split()[19]
        )
        nobody = SocketQueues(threshold_bytes=1, top=4096)
        assert owners_of(nobody, port) == ([NULL_I64] * 24, [NULL_I64] * 24)


def test_connections_that_are_older_than_the_agent(attach: Callable[..., Attached]) -> None:
    with backed_up(24, first=True) as (port, server, client):
        attached = attach("tcp")
        older = OlderSockets()
        queues = SocketQueues(threshold_bytes=1, top=4096, name_users=Connections(attached.loaded).name, older=older)
        assert owners_of(queues, port) == ([client] * 24, [server] * 24)
        os.kill(server, 9)
        os.waitpid(server, 0)
        assert server not in rows_of("connection", queues)["pid"]


def test_connections_to_servers_that_are_older_than_the_agent_have_a_row_at_its_start() -> None:
    """Though nothing is sent; the server's ends have none."""
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, mine.accept()[0]:
            queues = SocketQueues(max_listeners=4096, older=OlderSockets())
            for n in (1, 0):
                rows = rows_of("connection", queues)
                rows = rows[(rows["dport"] == port) | (rows["sport"] == port)]
                assert rows["pid"].tolist() == [os.getpid()] * n
                assert rows["sport"].tolist() == [one.getsockname()[1]] * n
                assert rows["queue"].tolist() == [0] * n
                assert set(rows["role"].tolist()) <= {TABLE.code("role", "client")}
                assert rows["peer"].tolist() == [peer_of(f"127.0.0.1:{port}")] * n


def test_a_socket_that_several_processes_hold_belongs_to_the_one_that_started_the_others() -> None:
    """None of two that hold it is an ancestor of the other one: it has no owner then."""

    def owner() -> list[int]:
        rows = rows_of("accept", SocketQueues(max_listeners=4096, older=OlderSockets()))
        pids: list[int] = rows["pid"][rows["sport"] == port].tolist()
        return pids

    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        with forked(mine), forked(mine):
            assert owner() == [os.getpid()]
        assert owner() == [os.getpid()]
        with forked(mine) as worker:
            mine.close()
            assert owner() == [worker]
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        with forked(mine), forked(mine):
            mine.close()
            assert owner() == [NULL_I64]


def test_a_shut_window_is_reported_with_what_was_taken_before() -> None:
    """Of several connections that are backed up, each its own; one whose reader reads again goes on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        writers = [socket.create_connection(server.getsockname()) for _ in range(3)]
        readers = {peer: end for end, peer in (server.accept() for _ in writers)}
        for writer in writers:
            writer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    writer.send(bytes(65536))
        time.sleep(0.3)  # what can be taken is
        seen = []
        for n in range(2):
            time.sleep(0.4 * n)
            rows = rows_of("connection")
            seen.append({int(r["sport"]): r for r in rows if r["dport"] == server.getsockname()[1]})
            began = time.monotonic_ns()
        before, after = seen
        ports = [writer.getsockname()[1] for writer in writers]
        assert set(before) == set(after) == set(ports)
        for port in ports:
            assert before[port]["acked_bytes"] == after[port]["acked_bytes"] > 0
            assert 300_000_000 <= after[port]["shut_ns"] - before[port]["shut_ns"] <= 400_000_000 * 5
        reader = readers[writers[0].getsockname()]
        with contextlib.suppress(BlockingIOError):
            while True:
                reader.recv(1 << 20, socket.MSG_DONTWAIT)
        time.sleep(0.1)
        moved = {int(r["sport"]): r for r in rows_of("connection") if r["dport"] == server.getsockname()[1]}
        assert ports[0] not in moved or moved[ports[0]]["acked_bytes"] > after[ports[0]]["acked_bytes"]
        assert moved[ports[1]]["acked_bytes"] == after[ports[1]]["acked_bytes"]
        assert time.monotonic_ns() > began
        for end in (*writers, *readers.values()):
            end.close()
