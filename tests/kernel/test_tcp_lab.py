"""Round-trip times and retransmits over a wire with a known delay and known loss, against the kernel's own counters."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.probes.tcp import tick_ns
from agent.tables import TABLES
from tests.cable import Cable, counters, every, first
from tests.kernel.conftest import Attached
from tests.lab.tcp import Pick, ask, swallow
from tests.patience import PATIENCE

Attach = Callable[..., Attached]
RETRANSMIT = TABLES["tcp_retransmit"]
CLIENT, SERVER = (TABLES["tcp_close"].code("role", r) for r in ("client", "server"))


def within(wire: Cable) -> Pick:
    return lambda rows: rows[np.isin(rows["netns"], [wire.left.inode, wire.right.inode])]


def connection(wire: Cable, ipv6: bool = False) -> tuple[socket.socket, socket.socket]:
    """(client in left, accepted socket in right)."""
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    with wire.right.entered():
        listener = socket.create_server((wire.RIGHT6 if ipv6 else wire.RIGHT, 0), family=family)
    with wire.left.entered():
        client = socket.socket(family)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    return client, server


def echo(server: socket.socket) -> None:
    with server:
        while data := server.recv(65536):
            server.sendall(data)


def test_rtt_while_one_long_send_blocks(attach: Attach) -> None:
    """The sender makes one call and receives nothing."""
    tcp = attach("tcp")
    with Cable(delay_s=0.01) as wire:
        client, server = connection(wire)
        whole = 8_000_000

        def sip() -> None:
            with server:
                until = time.monotonic() + 3
                while (
                    time.monotonic() < until
                ):  # fast enough for some acknowledgements in each window, far too slow for the sender
                    server.recv(8192)
                    time.sleep(0.005)
                while server.recv(65536):
                    pass

        spans: list[int] = []

        def send() -> None:
            spans.append(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            client.sendall(b"x" * whole)
            spans.append(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            client.close()

        threads = [threading.Thread(target=sip), threading.Thread(target=send)]
        for thread in threads:
            thread.start()
        closed = tcp.wait("tcp_close", within(wire), lambda r: len(r) >= 2, 30)
        for thread in threads:
            thread.join()
        rows = within(wire)(tcp.rows("tcp_rtt"))
    began, ended = spans
    assert list(closed["bytes_out"][closed["role"] == CLIENT]) == [whole]
    during = rows[(rows["role"] == CLIENT) & (rows["t_ns"] - rows["interval_ns"] > began) & (rows["t_ns"] < ended)]
    assert ended - began > 2_500_000_000
    assert len(during) >= 2
    assert during["rtt_min_us"].min() >= 20_000
    assert tcp.lost() == 0


@pytest.mark.parametrize("ipv6", [False, True])
def test_rtt_of_a_long_connection(attach: Attach, ipv6: bool) -> None:
    """20 ms each way is a smoothed RTT of 40 ms, and what the forwarder adds: less than either program waited for the
    other.
    """
    tcp = attach("tcp")
    with Cable(delay_s=0.02) as wire:
        began_ns = time.monotonic_ns()
        client, server = connection(wire, ipv6)
        waited = [time.monotonic_ns() - began_ns]

        def answer() -> None:
            with server:
                data = server.recv(65536)
                while data:
                    sent_ns = time.monotonic_ns()
                    server.sendall(data)
                    data = server.recv(65536)
                    waited.append(time.monotonic_ns() - sent_ns)

        thread = threading.Thread(target=answer)
        thread.start()
        end = time.monotonic() + 10 * PATIENCE
        while len(within(wire)(tcp.rows("tcp_rtt"))) < 10 and time.monotonic() < end:
            asked_ns = time.monotonic_ns()
            ask(client, 101)
            waited.append(time.monotonic_ns() - asked_ns)
            tcp.pump()
        client.close()
        thread.join()
        ends = tcp.wait("tcp_close", within(wire), lambda r: len(r) >= 2)
        rows, connects = (within(wire)(tcp.rows(table)) for table in ("tcp_rtt", "tcp_connect"))
        took_ns = time.monotonic_ns() - began_ns
    longest_us = max(waited) // 1000 + 1
    assert 40_000_000 <= connects["duration_ns"][0] <= waited[0]
    for role in (CLIENT, SERVER):
        mine = np.sort(rows[rows["role"] == role], order="t_ns")
        assert len(mine) >= 4
        assert len(set(mine["sock_id"])) == 1
        assert set(mine["pid"]) == {os.getpid()}
        assert ((mine["srtt_us"] >= 40_000) & (mine["srtt_us"] <= longest_us)).all()
        assert (mine["rtt_min_us"] <= mine["srtt_us"]).all()
        assert (mine["srtt_us"] <= mine["rtt_max_us"]).all()
        assert (mine["hist"].sum(axis=1) == mine["samples"]).all()
        assert mine["hist"][:, 15 : longest_us.bit_length()].sum() == mine["samples"].sum()  # from 2^15 us on
        assert ((mine["rtt_sum_us"] >= mine["samples"] * mine["rtt_min_us"]) & (mine["samples"] > 0)).all()
        assert set(ends["sock_id"][ends["role"] == role]) == set(mine["sock_id"])
    assert ((rows["interval_ns"] > 0) & (rows["interval_ns"] < took_ns + 1_000_000_000)).all()
    assert tcp.lost() == 0


def test_a_round_trip_from_before_a_delay_is_not_reported_during_it(attach: Attach) -> None:
    """Longer than the retransmission timeout: the kernel measures nothing where the peer answers the first copy."""
    tcp = attach("tcp")
    with Cable(delay_s=0.001) as wire:
        client, server = connection(wire)
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        for _ in range(50):
            ask(client, 101)
        wire.delay_s = 0.4
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for _ in range(6):
            ask(client, 101)
            tcp.pump()
        client.close()
        thread.join()
        tcp.wait("tcp_close", within(wire), lambda r: len(r) >= 2)
        rows = within(wire)(tcp.rows("tcp_rtt"))
    during = rows[rows["t_ns"] - rows["interval_ns"] > began_ns + 1_000_000_000]
    assert len(during) >= 4 and (during["srtt_us"] > 50_000).all()
    measured = during["raw_min_us"][during["raw_min_us"] != NULL_I64]
    assert (measured > 100_000).all(), during[["role", "samples", "srtt_us", "raw_min_us"]]


def test_data_retransmits_are_the_kernels_count(attach: Attach) -> None:
    tcp = attach("tcp")
    with Cable(drop=every("data", 41)) as wire:
        client, server = connection(wire)
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        sender = threading.Thread(target=client.sendall, args=(b"x" * 400_009,))
        sender.start()
        left = 400_009
        while left:
            left -= len(client.recv(65536))
        sender.join()
        client.close()
        thread.join()
        ends = tcp.wait("tcp_close", within(wire), lambda r: len(r) >= 2)
        rows = tcp.wait("tcp_retransmit", within(wire), lambda r: False, limit_s=0.5)
        for space, role in ((wire.left, CLIENT), (wire.right, SERVER)):
            counted, unsent = (counters(space, name)[name] for name in ("TcpRetransSegs", "TcpExtTCPRetransFail"))
            mine, end = rows[rows["netns"] == space.inode], ends[ends["role"] == role]
            assert counted > unsent
            assert mine["count"].sum() == counted - unsent  # the kernel counts those that a full device refused, too
            assert counted == end["retransmits"][0]
            assert set(mine["kind"]) == {RETRANSMIT.code("kind", "data")}
            assert set(mine["pid"]) == {os.getpid()}
            assert set(mine["sock_id"]) == set(end["sock_id"])
            assert set(mine["state"]) <= {b"established", b"close_wait", b"fin_wait_1", b"last_ack"}
            assert end["bytes_in"][0] == end["bytes_out"][0] == 400_009
    assert tcp.lost() == 0


def test_syn_retransmits(attach: Attach) -> None:
    tcp = attach("tcp")
    with Cable(drop=first("syn", 3)) as wire:
        clients = []
        with wire.right.entered():
            listener = socket.create_server((wire.RIGHT, 0))
        for _ in range(3):
            with wire.left.entered():
                clients.append(socket.socket())
            clients[-1].setblocking(False)
            clients[-1].connect_ex(listener.getsockname())
        thread = swallow(listener, 3)
        connects = tcp.wait("tcp_connect", within(wire), lambda r: len(r) >= 3)
        for client in clients:
            client.close()
        thread.join()
        listener.close()
        rows = tcp.wait("tcp_retransmit", within(wire), lambda r: len(r) >= 3)
        assert counters(wire.left, "TcpRetransSegs")["TcpRetransSegs"] == 3
    assert wire.dropped == 3
    assert len(rows) == len(connects) == 3
    assert set(rows["kind"]) == {RETRANSMIT.code("kind", "syn")}
    assert set(rows["state"]) == {b"syn_sent"}
    assert set(rows["count"]) == {1}
    assert set(rows["pid"]) == {os.getpid()}
    assert set(rows["sport"]) == set(connects["sport"])
    assert 0 not in rows["sport"]
    assert (connects["duration_ns"] >= 1_000_000_000).all()
    assert tcp.lost() == 0


def test_synack_retransmits(attach: Attach) -> None:
    tcp = attach("tcp")
    with Cable(drop=first("synack", 1)) as wire:
        client, server = connection(wire)
        client.close()
        server.close()
        rows = tcp.wait("tcp_retransmit", lambda r: r[r["netns"] == wire.right.inode], lambda r: len(r) >= 1)
        counted = counters(wire.right, "TcpRetransSegs")["TcpRetransSegs"]
    assert wire.dropped == 1
    assert len(rows) == counted >= 1
    assert set(rows["kind"]) == {RETRANSMIT.code("kind", "synack")}
    assert set(rows["state"]) == {b"syn_received"}
    assert set(rows["role"]) == {SERVER}
    assert set(rows["pid"]) == {os.getpid()}
    assert tcp.lost() == 0


def test_an_answer_is_given_up_when_the_program_closes_although_the_kernel_goes_on(attach: Attach) -> None:
    """Over a wire that was cut, of which the other end learns nothing; the connection's end is no second row."""
    tcp = attach("tcp")
    with Cable() as wire:
        client, server = connection(wire)
        with wire.left.entered():
            Path("/proc/sys/net/ipv4/tcp_orphan_retries").write_text("1")
        wire.drop = lambda _: True
        client.sendall(b"x" * 13)
        time.sleep(0.4)
        began = boot_ns()
        client.close()
        mine = within(wire)
        tcp.wait("tcp_close", mine, lambda r: len(r) >= 1, limit_s=1)
        seen_ns = boot_ns()
        (row,) = tcp.wait("tcp_close", mine, lambda _: not closing(wire), limit_s=20)
        server.close()
    assert began <= row["t_ns"] < seen_ns
    assert 350_000_000 <= row["waited_ns"] < row["duration_ns"] + tick_ns()  # the kernel times data in ticks
    assert (row["pid"], row["role"], row["bytes_out"]) == (os.getpid(), CLIENT, 0)


def closing(wire: Cable) -> bool:
    """Whether the kernel still tries to end a connection of the left side."""
    with wire.left.entered():
        return " 04 " in Path("/proc/thread-self/net/tcp").read_text()  # FIN_WAIT1


def test_what_the_kernel_failed_to_send_is_not_counted(attach: Attach) -> None:
    """A firewall refuses what the host itself sends: RetransSegs counts the attempts, TCPRetransFail those that
    failed.
    """
    from pyroute2.nftables.main import NFTables

    tcp = attach("tcp")
    with Cable(drop=first("data", 1)) as wire:
        client, server = connection(wire)
        with wire.left.entered():
            firewall = NFTables(nfgen_family=socket.AF_INET)
        firewall.table("add", name="lab")
        client.sendall(b"x" * 13)
        firewall.chain("add", table="lab", name="out", hook="output", type="filter", policy=0)
        time.sleep(1)
        failed = counters(wire.left, "TcpExtTCPRetransFail")["TcpExtTCPRetransFail"]
        firewall.table("del", name="lab")
        assert server.recv(100) == b"x" * 13
        for one in (client, server, firewall):
            one.close()
        rows = tcp.wait("tcp_retransmit", lambda r: r[r["netns"] == wire.left.inode], lambda r: len(r) >= 1)
        attempts = counters(wire.left, "TcpRetransSegs")["TcpRetransSegs"]
    assert failed >= 1
    assert rows["count"].sum() == attempts - failed >= 1
    assert tcp.lost() == 0


@pytest.mark.parametrize(("program", "kind"), [("on_tcp_retransmit", "syn"), ("on_tcp_retransmit_synack", "synack")])
def test_without_its_program_nothing_is_seen(attach: Attach, program: str, kind: str) -> None:
    tcp = attach("tcp")
    os.close(tcp.loaded.families["tcp"].links.pop(program))
    with Cable(drop=first(kind, 1)) as wire:
        client, server = connection(wire)
        client.close()
        server.close()
        assert counters(wire.left, "TcpRetransSegs")["TcpRetransSegs"] == 1
        rows = tcp.wait("tcp_retransmit", within(wire), lambda r: False, limit_s=0.5)
    assert RETRANSMIT.code("kind", kind) not in rows["kind"]
    assert RETRANSMIT.code("kind", "data") not in rows["kind"]


def test_what_was_sent_again_though_it_had_not_been_lost(attach: Attach) -> None:
    """Nothing is dropped, but round trips take half a second from one moment on, which is longer than the sender waits:
    the peer says that it had it already.
    """
    tcp = attach("tcp")
    with Cable(delay_s=0.0) as wire:
        client, server = connection(wire)
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        for _ in range(50):
            ask(client, 101)
            time.sleep(0.005)
        before = tcp.wait("tcp_rtt", within(wire), lambda r: len(r) >= 2)
        wire.delay_s = 0.25
        for _ in range(8):
            ask(client, 101)
        client.close()
        thread.join()
        ends = tcp.wait("tcp_close", within(wire), lambda r: len(r) >= 2)
        tcp.wait("tcp_rtt", within(wire), lambda r: False, limit_s=1.2)
        rows = within(wire)(tcp.rows("tcp_rtt"))
    mine, end = rows[rows["role"] == CLIENT], ends[ends["role"] == CLIENT]
    assert wire.dropped == 0
    assert before["again"].max() == 0
    assert 0 < mine["again"].sum() <= end["retransmits"][0]
    assert 0 < mine["doubled"].sum() <= mine["again"].sum()
    assert 50 <= mine["segments"].sum() <= 58 + end["retransmits"][0]
    assert mine["raw_max_us"].max() >= 490_000 > mine["raw_min_us"][mine["raw_min_us"] > 0].min()
    assert tcp.lost() == 0
