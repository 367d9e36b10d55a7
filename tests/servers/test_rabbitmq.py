"""A RabbitMQ node, its clients and its ports: workers that hold messages, names, alarms, rights, TLS, a node that is
gone, servers that answer badly. What waits in its queues: test_rabbitmq_queues.py.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.errors import AgentError
from agent.queues.brokers.rabbitmq import BROKER, TIMEOUT_S, RabbitQueues, RabbitUrl
from agent.queues.judged import Judged
from tests.servers.celery_pieces import Worker, application
from tests.servers.polled import failed, poll, row_of, until_row, until_rows
from tests.servers.rabbitmq import Rabbit, client
from tests.servers.rabbitmq_pieces import api_problems, rabbit, source

__all__ = ["rabbit"]


@pytest.fixture
def worker(rabbit: Rabbit, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts Celery workers of this node; all end with the test."""
    with contextlib.ExitStack() as ends:

        def begin(**more: Any) -> Worker:
            one = Worker(rabbit.amqp, tmp_path, **more)
            ends.callback(one.end)
            return one

        yield begin


@pytest.mark.parametrize(("task", "ready"), [("late", 7), ("early", 5)])
def test_a_worker_of_celery_that_holds_all_that_it_may_and_is_killed(
    rabbit: Rabbit, worker: Callable[..., Worker], task: str, ready: int
) -> None:
    """Two processes: with late acknowledgement the tasks that run are unacknowledged, else the two that are next."""
    name = f"tasks-{task}"
    app = application(rabbit.amqp)
    # A node that answers slowly is not asked for its channels, without which no stall is known.
    url = RabbitUrl.parse(rabbit.with_management + f"&queues={name}")
    queue = Judged("rabbitmq", RabbitQueues(url, timeout_s=20))
    its = worker(processes=2, queues=name)
    for _ in range(9):
        app.send_task(task, (600,), queue=name)
    row = until_row(queue, name, "", lambda row: (row["lag_messages"], row["pending"]) == (ready, 2))
    assert len(its.did("begin")) == 2
    full = f"{ready} undelivered; prefetch exhausted: 2 of 2".encode()
    row = until_row(queue, name, "", lambda row: row["reason"].endswith(full), 60)
    assert (row["status"], row["consumers"], row["redelivered"]) == (b"stalled", 1, 0)
    address = row["workers"].decode()
    assert address in its.addresses(rabbit.port)
    its.end()
    row = until_row(queue, name, "", lambda row: (row["lag_messages"], row["pending"]) == (ready + 2, 0))
    assert (row["consumers"], row["workers"]) == (0, b"")
    again = worker(processes=2, queues=name)
    until_row(queue, name, "", lambda row: row["redelivered"] > 0)
    until_row(queue, name, "", lambda row: len(again.did("begin")) == 2)
    assert set(again.did("begin")) & set(its.did("begin")) == (set(its.did("begin")) if task == "late" else set())
    queue.close()


def test_a_worker_of_celery_that_holds_messages_of_two_queues(rabbit: Rabbit, worker: Callable[..., Worker]) -> None:
    """Its prefetch is for both of them together, before RabbitMQ 4."""
    app = application(rabbit.amqp)
    url = RabbitUrl.parse(rabbit.with_management + "&queues=both-*")
    queue = Judged("rabbitmq", RabbitQueues(url, timeout_s=20))
    worker(processes=2, queues="both-a,both-b")
    app.send_task("late", (600,), queue="both-b")
    until_row(queue, "both-b", "", lambda row: row["pending"] == 1)
    for _ in range(8):
        app.send_task("late", (600,), queue="both-a")
    full = b" undelivered; prefetch exhausted: 2 of 2"
    row = until_row(queue, "both-a", "", lambda row: row["reason"].endswith(full), 60)
    # RabbitMQ 4 makes the prefetch one of each consumer, so the worker holds two of this queue as well.
    assert (row["status"], row["lag_messages"], row["pending"]) in ((b"stalled", 7, 1), (b"stalled", 6, 2))
    queue.close()


def test_a_retry_of_celery_waits_in_the_worker(rabbit: Rabbit, worker: Callable[..., Worker]) -> None:
    """A retry is a new message for RabbitMQ: one that was published and delivered, never one that was redelivered."""
    app, queue = application(rabbit.amqp), source(rabbit.url + "&queues=retries-of-celery")
    its = worker(queues="retries-of-celery")
    until_row(queue, "retries-of-celery", "", lambda row: row["consumers"] == 1)
    app.send_task("fails", queue="retries-of-celery")
    row = until_row(queue, "retries-of-celery", "", lambda row: row["pending"] == 1)
    assert len(its.did("begin")) == 1
    assert (row["lag_messages"], row["redelivered"]) == (0, 0)
    queue.close()


def test_names_virtual_hosts_and_patterns(rabbit: Rabbit) -> None:
    rabbit.ctl("add_vhost", "eu/west")
    rabbit.ctl("set_permissions", "-p", "eu/west", "guest", ".*", ".*", ".*")
    for name, vhost in (("bills", "/"), ("bills", "eu/west"), ("a/b", "/"), ("\xe9q\u20ac", "/")):
        rabbit.declare(name, vhost=vhost)
        rabbit.publish(name, 3, vhost)
    queue = source(rabbit.url + "&queues=*bills,%252F/*,*q*,missing")
    until_row(queue, "eu%2Fwest/bills", "", lambda row: row["lag_messages"] == 3)
    until_row(queue, "bills", "", lambda row: row["lag_messages"] == 3)
    until_row(queue, "%2F/a/b", "", lambda row: row["lag_messages"] == 3)
    until_row(queue, "\xe9q\u20ac", "", lambda row: row["lag_messages"] == 3)
    rows = poll(queue)
    assert b"no statistics" in row_of(rows, "missing")["reason"]
    assert row_of(rows, "missing")["lag_messages"] < 0
    rabbit.declare('q",x="')  # 3.10 does not escape it
    try:
        time.sleep(3)
        rows = poll(queue)
        row = row_of(rows, 'q",x="')
        assert row is not None or b"quotes" in b"".join(rows["reason"].tolist())
        assert row_of(rows, "q") is None
        assert row_of(rows, "bills")["lag_messages"] == 3
    finally:
        with rabbit.connect() as connection:
            connection.channel().queue_delete('q",x="')
    queue.close()


def test_a_memory_alarm_is_reported_with_every_queue(rabbit: Rabbit) -> None:
    rabbit.declare("alarmed")
    queue = source(rabbit.url + "&queues=alarmed,missing")
    until_row(queue, "alarmed", "", lambda row: row["errors"] == b"")
    rabbit.ctl("set_vm_memory_high_watermark", "absolute", "1MiB")
    try:
        row = until_row(queue, "alarmed", "", lambda row: row["errors"] == b"MEMORY_ALARM 1")
        assert row["reason"] == b"memory alarm: publishers are blocked"
        assert row_of(poll(queue), "missing")["errors"] == b"MEMORY_ALARM 1"
        with client("publish", rabbit.port, "alarmed", 10), client("publish", rabbit.port, "alarmed", 10):
            managed = source(rabbit.with_management + "&queues=alarmed")
            until_row(
                managed, "alarmed", "", lambda row: row["reason"].endswith(b"publishers are blocked: 2 connections")
            )
            managed.close()
        until_row(queue, "alarmed", "", lambda row: row["memory_bytes"] > row["memory_limit_bytes"] > 0)
    finally:
        rabbit.ctl("set_vm_memory_high_watermark", "0.6")
    until_row(queue, "alarmed", "", lambda row: row["errors"] == b"")
    queue.close()


def test_a_wrong_password_of_the_management_port_costs_only_what_that_port_has(rabbit: Rabbit) -> None:
    rabbit.declare("there")
    queue = source(rabbit.with_management.replace("guest:guest", "guest:wrong"))
    until_row(queue, "there", "", lambda row: row["lag_messages"] == 0)
    (problem,) = api_problems(queue)
    assert problem.startswith(b"management API: HTTP 401 Unauthorized")
    queue.close()
    rabbit.ctl("add_user", "untagged", "pw")
    queue = source(rabbit.with_management.replace("guest:guest", "untagged:pw"))
    until_row(queue, "there", "", lambda row: row["lag_messages"] == 0)
    tag = b"rabbitmqctl set_user_tags USER monitoring"
    assert api_problems(queue) == [b"management API: HTTP 401 Unauthorized: Not management user: " + tag]
    queue.close()


def test_least_rights_for_the_management_port(rabbit: Rabbit) -> None:
    rabbit.declare("retries", x_message_ttl=60_000, x_dead_letter_exchange="")
    rabbit.ctl("add_user", "watch", "pw")
    rabbit.ctl("set_user_tags", "watch", "monitoring")
    url = rabbit.with_management.replace("guest:guest", "watch:pw") + "&queues=retries"
    queue = source(url)
    until_row(queue, "retries", "", lambda row: row["delayed"] < 0)
    assert api_problems(queue) == [b"management API: its user has no permission for virtual host /"]
    queue.close()
    rabbit.ctl("set_permissions", "-p", "/", "watch", "^$", "^$", "^$")
    queue = source(url)
    row = until_row(queue, "retries", "", lambda row: row["delayed"] == 0)
    assert row["peer"].tobytes()[16:] == rabbit.port.to_bytes(2, "little")
    assert api_problems(queue) == []
    queue.close()


@pytest.mark.parametrize(
    ("host", "authority", "words"),
    [
        ("127.0.0.1", "ca", ""),
        ("127.0.0.1", "other", "certificate verify failed: set `ca_file` to its authority ("),
        ("localhost", "ca", "certificate verify failed: set `url` to a name in it (Hostname mismatch"),
    ],
    ids=["right", "wrong authority", "wrong name"],
)
def test_tls(rabbit: Rabbit, tmp_path: Path, host: str, authority: str, words: str) -> None:
    rabbit.declare("secret", x_message_ttl=60_000, x_dead_letter_exchange="")
    (tmp_path / "password").write_text("guest\n")
    url = f"https://{host}:{rabbit.tls_metrics_port}?management={rabbit.tls_management_port}&queues=secret"
    login = {"user": "guest", "password_file": str(tmp_path / "password")}
    (queue,) = BROKER.sources([{"url": url, "ca_file": str(rabbit.directory / f"{authority}.pem"), **login}])
    if not words:
        row = until_row(queue, "secret", "", lambda row: row["delayed"] == 0)  # by the management API
        assert row["cluster"] == f"shop-{rabbit.port}".encode()
        assert api_problems(queue) == []
    else:
        for row in (poll(queue)[0] for _ in range(3)):
            assert (row["status"], row["destination"]) == (b"down", b"")
            assert words in row["reason"].decode()
    queue.close()


def test_a_stopped_a_dead_and_a_returned_node(rabbit: Rabbit) -> None:
    rabbit.declare("lasts")
    rabbit.publish("lasts", 5, delivery_mode=2)
    queue = Judged("rabbitmq", RabbitQueues(RabbitUrl.parse(rabbit.url + "&queues=lasts")))
    until_row(queue, "lasts", "", lambda row: row["lag_messages"] == 5)
    rabbit.pause()
    try:
        (row,) = poll(queue)
    finally:
        rabbit.signal(signal.SIGCONT)
    assert (row["status"], row["destination"], failed(row)) == (b"down", b"lasts", "no_answer")
    assert row["poll_ns"] >= TIMEOUT_S * 1e9
    until_row(queue, "lasts", "", lambda row: row["status"] != b"down")
    rabbit.declare("lasts-quorum", "quorum")  # it is listed with the first statistics of its leader
    both = Judged("rabbitmq", RabbitQueues(RabbitUrl.parse(rabbit.url + "&queues=lasts*")))
    until_row(both, "lasts-quorum", "", lambda row: row["lag_messages"] == 0)
    rabbit.kill()
    row = until_row(queue, "lasts", "", lambda row: failed(row) == "refused")
    assert row["status"] == b"down"
    poll(both)
    rabbit.start()
    row = until_row(queue, "lasts", "", lambda row: row["lag_messages"] == 5)
    assert row["status"] == b"ok"
    assert row["cluster"] == f"shop-{rabbit.port}".encode()
    ends = time.monotonic() + 15
    rows = until_rows(both, lambda rows: b"gone" in rows["status"] or time.monotonic() > ends)
    assert b"gone" not in rows["status"] and set(rows["destination"]) == {b"lasts", b"lasts-quorum"}
    queue.close()
    both.close()


class Odd:
    """A server that answers each connection with ``say``, and keeps it open."""

    def __init__(self, say: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._say, self._open = say, list[socket.socket]()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        try:
            connection.recv(65536)
            self._say(connection)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


def _slowly(connection: socket.socket) -> None:
    for letter in b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 99:
        connection.sendall(bytes([letter]))
        time.sleep(0.1)


def _endless(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def say(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return say


def _once(answer: bytes) -> Callable[[socket.socket], None]:
    def say(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)

    return say


@pytest.mark.parametrize(
    ("say", "failure", "words"),
    [
        (_slowly, "no_answer", "no answer in time"),
        (lambda _: time.sleep(20), "no_answer", "no answer in time"),
        (_endless(b"HTTP/1.1 200 OK\r\n\r\n", b"# x\n" * 16384), "other", "too large"),
        (_endless(b"HTTP/1.1 200 OK\r\nx: ", b"y" * 65536), "other", "not HTTP"),
        (
            _endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n"),
            "other",
            "too large",
        ),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"), "other", "too large"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"), "closed", "closed"),
        (
            _once(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"),
            "login",
            "HTTP 401 Unauthorized: wrong user or password: see user, password_file",
        ),
        (_once(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"), "other", "HTTP 503"),
        (_once(b"SSH-2.0-OpenSSH_9.2\r\n"), "other", "not HTTP"),
        (_once(b""), "closed", "closed"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"), "other", "text format"),
    ],
)
def test_a_server_that_answers_badly_is_down_with_the_reason(
    say: Callable[[socket.socket], None], failure: str, words: str
) -> None:
    server = Odd(say)
    queue = source(f"http://guest:secret@127.0.0.1:{server.port}")
    (row,) = poll(queue)
    queue.close()
    server.close()
    assert (row["status"], failed(row)) == (b"down", failure), row["reason"]
    assert words in row["reason"].decode()
    assert b"secret" not in row["reason"]


@pytest.mark.parametrize("always", [False, True])
def test_statistics_of_channels_are_left_out_if_they_alone_take_long(always: bool) -> None:
    asked = []

    class Slow(Odd):
        def _one(self, connection: socket.socket) -> None:
            asked.append(b"delivery_metrics" in connection.recv(65536))
            if asked[-1] or always:
                time.sleep(0.6)
            body = b'rabbitmq_detailed_queue_messages_ready{vhost="/",queue="a"} 7\n'
            with contextlib.suppress(OSError):
                _once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)(connection)

    server = Slow(lambda _: None)
    queue = RabbitQueues(RabbitUrl("127.0.0.1", server.port), timeout_s=0.4)
    queue._seldom_ns = 1 << 62  # only queues are asked for
    states = [queue.poll()[0].get("status", "judged") for _ in range(6)]
    queue.close()
    server.close()
    assert asked[:6] == [True, True, True, False, always, always]
    assert states == ["down"] * 3 + ["down" if always else "judged"] * 3


def test_a_refused_login_is_not_repeated_at_once() -> None:
    asked = []

    def say(connection: socket.socket) -> None:
        asked.append(1)
        _once(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")(connection)

    server = Odd(say)
    queue = source(f"http://guest:secret@127.0.0.1:{server.port}")
    assert all(failed(poll(queue)[0]) == "login" for _ in range(5))
    queue.close()
    server.close()
    assert len(asked) == 1


def test_a_section_has_its_password_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    monkeypatch.setenv("TICKSCOPE_RABBITMQ_PASSWORD", "t0psecret")
    heads: list[bytes] = []

    def say(connection: socket.socket) -> None:
        _once(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")(connection)

    class Listening(Odd):
        def _one(self, connection: socket.socket) -> None:
            heads.append(connection.recv(65536))
            self._say(connection)

    server = Listening(say)
    url = f"http://127.0.0.1:{server.port}"
    for given in ({"password_file": str(secret)}, {"password_variable": "TICKSCOPE_RABBITMQ_PASSWORD"}):
        (queue,) = BROKER.sources([{"url": url, "user": "watch", **given}])
        poll(queue)
        queue.close()
    assert b"Basic d2F0Y2g6czNjcmV0\r\n" in heads[0]
    assert b"Basic d2F0Y2g6dDBwc2VjcmV0\r\n" in heads[1]
    (queue,) = BROKER.sources([{"url": url, "password_file": str(tmp_path / "none")}])
    (row,) = poll(queue)
    assert (failed(row), b"No such file" in row["reason"]) == ("login", True)
    server.close()
    for given in (
        {},
        {"url": "http://u:pw@h", "user": "u"},
        {"url": "http://u:pw@h", "key_file": "x"},
        {"url": url, "password_file": "a", "password_variable": "TICKSCOPE_RABBITMQ_B"},
        {"url": url, "password_variable": "RABBIT_PASSWORD"},  # the broker process would not get it
    ):
        with pytest.raises(AgentError) as error:
            BROKER.sources([given])
        assert "pw" not in str(error.value)
