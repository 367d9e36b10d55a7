"""Data that real Redis servers lose at a fail-over. The network to the replica is cut: one that is only stopped still
gets what is in its socket's buffer, and loses nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.queues.brokers.redis import BROKER
from tests.patience import until
from tests.servers.polled import poll, row_of
from tests.servers.test_redis_lag import fill
from tests.servers.test_redis_streams import RELEASES, Redis, server_of


class Route:
    """A network path to a server: ``port`` leads to ``target``, until it is cut. No end is closed then."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def lead(self, target: int) -> None:
        """New connections lead there; those of now are closed."""
        self.target = target
        self._close()

    def end(self) -> None:
        self._listener.close()
        self._close()

    def _close(self) -> None:
        some, self._sockets = self._sockets, []
        for one in some:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._open.is_set():
                    sink.sendall(data)


class Pair:
    """A primary, its replica, and the address that clients use."""

    def __init__(self, directory: Path, command: Sequence[str] = ("redis-server",)) -> None:
        (directory / "a").mkdir()
        (directory / "b").mkdir()
        self.primary = Redis(directory / "a", "--repl-diskless-sync-delay", "0", command=command)
        self.replica = Redis(directory / "b", command=command)
        self.link, self.address = Route(self.primary.port), Route(self.primary.port)
        self.replica.do("REPLICAOF", "127.0.0.1", self.link.port)
        self.caught_up()

    def info(self, server: Redis) -> dict[str, str]:
        text: Any = server.do("INFO", "replication")
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)

    def caught_up(self) -> None:
        def equal() -> bool:
            there, here = self.info(self.replica), self.info(self.primary)
            return there.get("master_link_status") == "up" and there["slave_repl_offset"] == here["master_repl_offset"]

        until(equal, each_s=0.05, why=lambda: (self.info(self.replica), self.info(self.primary)))

    def fail_over(self) -> None:
        self.replica.do("REPLICAOF", "NO", "ONE")
        self.address.lead(self.replica.port)

    def end(self) -> None:
        for one in (self.link, self.address):
            one.end()
        for server in (self.primary, self.replica):
            server.end()


@pytest.fixture(params=RELEASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, server_of(request.param))
    yield made
    made.end()


def test_what_a_promoted_replica_had_not_received_is_a_state_with_its_bound(pair: Pair) -> None:
    for stream in ("orders", "mails"):
        fill(pair.primary, 41, stream=stream)
        pair.primary.do("XGROUP", "CREATE", stream, "g", "0")
    pair.caught_up()
    (queue,) = BROKER.sources([f"redis://127.0.0.1:{pair.address.port}/0"])
    assert set(poll(queue)["status"].tolist()) == {b"ok"}
    pair.link.cut()
    fill(pair.primary, 23, start=100, stream="orders")
    pair.primary.do("XGROUP", "CREATE", "new", "g", "$", "MKSTREAM")
    pair.primary.do("SET", "counter", "x" * 1000)
    assert row_of(poll(queue), "orders")["lag_messages"] == 64
    assert row_of(poll(queue), "new")["status"] == b"ok"
    had = int(pair.info(pair.primary)["master_repl_offset"])
    pair.fail_over()
    lost = had - (int(pair.info(pair.replica)["second_repl_offset"]) - 1)
    assert lost > 1000
    rows = poll(queue)
    while rows["status"].tolist() == [b"down"] * len(rows):  # its connection was closed
        rows = poll(queue)
    orders, mails, server = (row_of(rows, name) for name in ("orders", "mails", ""))
    assert (orders["status"], orders["lag_messages"]) == (b"rewound", 41)
    assert b"fail-over: at least 23 entries are gone" in orders["reason"]
    assert mails["status"] == b"ok"
    new = row_of(rows, "new")
    assert (new["status"], new["reason"]) == (b"gone", b"fail-over: the stream is missing; 0 s ago")
    assert server["status"] == b"rewound"
    # The last poll was before ``had``: PING and GETACK may have come between.
    claimed = int(server["reason"].split(b"at least ")[1].split(b" ")[0].replace(b",", b""))
    assert lost - 200 < claimed <= lost
    assert row_of(poll(queue), "orders")["status"] == b"rewound"  # for a minute


def test_a_fail_over_without_loss_is_none(pair: Pair) -> None:
    fill(pair.primary, 41, stream="orders")
    pair.primary.do("XGROUP", "CREATE", "orders", "g", "0")
    (queue,) = BROKER.sources([f"redis://127.0.0.1:{pair.address.port}/0"])
    poll(queue)
    pair.caught_up()
    pair.fail_over()
    fill(pair.replica, 7, start=100, stream="orders")
    rows = poll(queue)
    while b"down" in rows["status"].tolist():
        rows = poll(queue)
    assert [(row["status"], row["lag_messages"]) for row in rows] == [(b"ok", 48)]


def test_a_group_that_is_set_back_is_rewound(pair: Pair) -> None:
    fill(pair.primary, 41, stream="orders")
    pair.primary.do("XGROUP", "CREATE", "orders", "g", "30-0")
    pair.primary.do("XGROUP", "CREATE", "orders", "other", "30-0")
    (queue,) = BROKER.sources([f"redis://127.0.0.1:{pair.address.port}/0"])
    assert poll(queue)["status"].tolist() == [b"ok"] * 2
    pair.primary.do("XGROUP", "SETID", "orders", "g", "10-0")
    one, other = poll(queue)
    assert (one["status"], one["lag_messages"], other["status"]) == (b"rewound", 31, b"ok")
    assert b"went back from 30-0 to 10-0" in one["reason"]
