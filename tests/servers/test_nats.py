"""NATS JetStream's consumers against real servers. Counts are prime, so that no doubling or halving goes unseen.

Counts are exact at the instant of the poll: they are compared while nothing moves. An age is compared with the times
between which the script sent or took the message.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from agent.common.address import peer_bytes
from agent.queues.brokers.nats import _REPORT, BROKER, TIMEOUT_S, NatsConsumers, NatsUrl
from agent.queues.nats_report import time_ns
from agent.queues.packing import TABLE
from agent.queues.queue import Queue
from agent.queues.timers import rule
from tests.patience import returned, until
from tests.ports import free_ports
from tests.releases import program, unpacked
from tests.servers.nats import SECOND, Nats, NatsClient, client
from tests.servers.polled import failed, poll, row_of, until_row, watched
from tests.servers.test_rabbitmq import Odd, _once


@pytest.fixture(scope="module", params=["own", "trixie"])
def nats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """This host's release (Debian 12: 2.9), and Debian 13's (2.10)."""
    command: list[str] = ["nats-server"]
    if request.param != "own":
        packages = ("nats-server", "libc6")
        command = program(unpacked(f"{request.param}-nats", request.param, packages), "usr/sbin/nats-server")
    server = Nats(tmp_path_factory.mktemp("nats"), command)
    yield server
    server.end()


@pytest.fixture
def js(nats: Nats) -> Iterator[NatsClient]:
    """A connection. Streams are deleted at the end."""
    connection = nats.client()
    yield connection
    for name in connection.api("STREAM.NAMES")["streams"] or ():
        connection.api(f"STREAM.DELETE.{name}")
    connection.close()


def now(queue: Queue, stream: str, consumer: str) -> Any:
    row = row_of(poll(queue), stream, consumer)
    assert row is not None
    return row


def gone(queue: Queue, stream: str, consumer: str) -> Any:
    """The row of the second report without it; the first has none."""
    assert row_of(poll(queue), stream, consumer) is None
    return now(queue, stream, consumer)


def counts(row: Any) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("lag_messages", "pending", "redelivered"))


def test_waiting_delivered_redelivered_and_acknowledged_messages(nats: Nats, js: NatsClient) -> None:
    js.stream("orders", max_age=3600 * SECOND)
    js.consumer("orders", "bill", ack_wait=2 * SECOND)
    with watched(BROKER, nats.url) as queue:
        row = now(queue, "orders", "bill")
        assert counts(row) == (0, 0, 0) and row["exact"] and row["lag_s"] == 0
        assert row["peer"].tobytes() == b"\0" * 10 + b"\xff\xff\x7f\0\0\x01" + nats.port.to_bytes(2, "little")
        began = time.monotonic()
        js.fill("orders.a", 101)
        assert counts(now(queue, "orders", "bill")) == (101, 0, 0)
        taken = js.pull("orders", "bill", 37)
        took = time.monotonic()
        row = now(queue, "orders", "bill")
        ended = time.monotonic()
        assert counts(row) == (101 - 37, 37, 0)
        assert row["exact"] and not row["inexact_reason"]
        assert abs(row["lag_s"] - (ended - began)) < row["lag_error_s"] + (ended - began)
        assert 3590 < row["retention_left_s"] <= 3600
        js.acknowledge(*taken[:11], *taken[12:13])  # one of them out of order
        row = now(queue, "orders", "bill")
        assert counts(row) == (101 - 37, 25, 0)
        assert 0 <= row["oldest_pending_s"] < time.monotonic() - took + 2
        time.sleep(2.5)  # AckWait is over
        assert counts(now(queue, "orders", "bill")) == (101 - 37, 25, 0)  # nobody has asked for them
        again = js.pull("orders", "bill", 7)
        row = now(queue, "orders", "bill")
        assert counts(row) == (101 - 37, 25, 7)
        assert row["oldest_pending_s"] > 2  # since the first delivery
        js.acknowledge(*again)
        assert counts(now(queue, "orders", "bill")) == (101 - 37, 18, 0)


def test_an_age_is_between_the_bounds_that_the_script_knows(nats: Nats, js: NatsClient) -> None:
    js.stream("dated")
    js.consumer("dated", "all")
    js.consumer("dated", "few", filter_subject="dated.rare")
    sent: list[tuple[float, float]] = []

    def send(subject: str) -> None:
        before = time.monotonic()
        js.fill(subject, 1)
        sent.append((before, time.monotonic()))

    def check(row: Any, number: int, before: float, after: float) -> None:
        """The oldest is the one of this number (from 0)."""
        least, most = before - sent[number][1], after - sent[number][0]
        if isnan(row["lag_s"]):
            assert row["oldest_undelivered_s"] <= most + 0.01, row
            assert b"age: " in row["inexact_reason"]
        else:
            error = 0.01 if isnan(row["lag_error_s"]) else row["lag_error_s"]
            assert least - error <= row["lag_s"] <= most + error, (row, least, most)

    with watched(BROKER, nats.url) as queue:
        for number in range(12):
            send("dated.rare" if number == 7 else "dated.often")
            before = time.monotonic()
            rows = poll(queue)
            check(row_of(rows, "dated", "all"), 0, before, time.monotonic())
            if number >= 7:
                check(row_of(rows, "dated", "few"), 7, before, time.monotonic())
            time.sleep(0.3)
        for number in range(11):
            js.acknowledge(*js.pull("dated", "all", 1))
            before = time.monotonic()
            row = now(queue, "dated", "all")
            check(row, number + 1, before, time.monotonic())
            assert row["lag_s"] > 0
    with watched(
        BROKER, nats.url
    ) as queue:  # one that was not there when the messages came: the server's times are left
        before = time.monotonic()
        row = now(queue, "dated", "all")
        check(row, 11, before, time.monotonic())
        assert row["lag_messages"] == 1 and TABLE.by_name["lag_basis"].names[row["lag_basis"]] == "log_append"


def test_growing_then_draining_then_idle(nats: Nats, js: NatsClient) -> None:
    js.stream("mails")
    js.consumer("mails", "smtp")
    with watched(BROKER, nats.url + "?streams=mails") as queue:
        with client("publish", nats.port, "mails.a", 200):
            for message in js.pull("mails", "smtp", 3):  # reads a little, and far too little
                js.acknowledge(message)

            def lags(row: Any) -> bool:
                js.acknowledge(*js.pull("mails", "smtp", 1))
                return bool(row["status"] == b"lagging")

            row = until_row(queue, "mails", "smtp", lags)
            assert 150 < row["in_per_s"] < 250 and row["lag_messages"] > 300
        left = now(queue, "mails", "smtp")["lag_messages"]
        with client("publish", nats.port, "mails.a", 1), client("consume", nats.port, "mails", "smtp", 50):
            row = until_row(queue, "mails", "smtp", lambda row: row["lag_messages"] < left)
            until_row(queue, "mails", "smtp", lambda row: row["lag_messages"] == 0 and row["lag_s"] == 0)
        row = until_row(queue, "mails", "smtp", lambda row: row["in_per_s"] == 0)
        assert row["status"] == b"ok"


def test_a_stopped_consumer_and_one_that_nobody_uses(nats: Nats, js: NatsClient) -> None:
    js.stream("stops")
    js.consumer("stops", "held")
    js.consumer("stops", "unused")
    js.consumer("stops", "pushed", deliver_subject="to.nobody")
    with (
        watched(BROKER, nats.url) as queue,
        client("publish", nats.port, "stops.a", 60),
        client("consume", nats.port, "stops", "held", 5) as consumer,
    ):
        until_row(queue, "stops", "held", lambda row: row["out_per_s"] > 30)
        os.kill(consumer.pid, signal.SIGSTOP)
        row = until_row(queue, "stops", "held", lambda row: row["status"] in (b"stopped", b"stalled"), 60)
        assert 0 < row["pending"] <= 5 and row["lag_messages"] > 100 and row["out_per_s"] == 0
        row = until_row(queue, "stops", "unused", lambda row: row["status"] == b"stopped")
        assert b"no consumer requested messages" in row["reason"]
        row = until_row(queue, "stops", "pushed", lambda row: row["status"] == b"stopped")
        assert row["consumers"] == 0 and b"no consumer for" in row["reason"]
        os.kill(consumer.pid, signal.SIGCONT)
        until_row(
            queue, "stops", "held", lambda row: row["status"] in (b"ok", b"draining") and row["lag_messages"] < 100
        )


def test_messages_that_were_deleted_are_not_counted(nats: Nats, js: NatsClient) -> None:
    js.stream("short", max_msgs=23)
    js.consumer("short", "late")
    js.consumer("short", "few", filter_subject="short.few")
    js.consumer("short", "never")
    with watched(BROKER, nats.url) as queue:
        js.fill("short.a", 11)
        assert now(queue, "short", "late")["removed"] == 0
        js.acknowledge(*js.pull("short", "late", 3))
        js.fill("short.few", 3)
        js.fill("short.a", 47)
        row = now(queue, "short", "late")
        assert counts(row) == (23, 0, 0) and row["exact"]
        assert row["inexact_reason"].startswith(b"35 messages were deleted before they were delivered")
        assert row["removed"] == 35
        row = now(queue, "short", "never")
        assert row["inexact_reason"].startswith(b"38 messages were deleted") and row["removed"] == 38
        assert now(queue, "short", "few")["removed"] == -(2**63)  # whether they were for it is not known
        assert counts(now(queue, "short", "few")) == (0, 0, 0)
        taken = js.pull("short", "late", 2)
        before = now(queue, "short", "late")
        js.api("STREAM.PURGE.short", {"keep": 7})
        row = until_row(queue, "short", "late", lambda row: row["lag_messages"] == 7)
        # Those that were pending may be among them, but none that was not delivered.
        assert row["out_per_s"] * (row["t_ns"] - before["t_ns"]) / SECOND < 2.01
        js.acknowledge(*taken)
        js.api("STREAM.PURGE.short")
        row = until_row(queue, "short", "late", lambda row: row["lag_messages"] == 0)
        assert counts(row) == (0, 0, 0)
        assert row["inexact_reason"].startswith(b"56 messages were deleted before they were delivered")
        assert row["removed"] == 56
        js.api("CONSUMER.DELETE.short.late")
        row = gone(queue, "short", "late")
        assert (row["status"], row["reason"]) == (b"gone", b"the consumer was deleted; 0 s ago")
        js.consumer("short", "late")
        assert now(queue, "short", "late")["status"] == b"ok"
        js.api("STREAM.DELETE.short")
        assert gone(queue, "short", "late")["reason"] == b"the stream was deleted; 0 s ago"


def test_messages_that_were_delivered_or_that_a_consumer_is_not_to_get_are_not_removed(
    nats: Nats, js: NatsClient
) -> None:
    js.stream("kept", max_msgs=13)
    js.stream("values", max_msgs_per_subject=1)
    js.fill("kept.a", 47)
    for name, policy in (("all", "all"), ("new", "new"), ("newest", "last")):
        js.consumer("kept", name, deliver_policy=policy)
    js.consumer("values", "all")
    with watched(BROKER, nats.url) as queue:
        for _ in range(5):
            for name in ("all", "new", "newest"):
                js.pull("kept", name, 20, 0.2)
            js.fill("kept.a", 11)
            js.fill("values.a", 3)
            rows = poll(queue)
            assert [row_of(rows, "kept", name)["removed"] for name in ("all", "new", "newest")] == [0, 0, 0]
            assert row_of(rows, "values", "all")["removed"] == -(2**63)


def test_a_full_consumer_a_work_queue_and_names(nats: Nats, js: NatsClient) -> None:
    began = time.monotonic()
    js.stream("work", retention="workqueue")
    js.fill("work.a", 13)
    with watched(BROKER, nats.url + "?streams=wor*,ful*,none") as queue:
        row = now(queue, "work", "")
        assert (row["lag_messages"], row["consumers"], row["exact"]) == (13, 0, 1)
        assert 0 < row["oldest_undelivered_s"] < time.monotonic() - began
        nats.pause()
        try:
            (row,) = poll(queue)
        finally:
            nats.signal(signal.SIGCONT)
        assert (row["destination"], row["status"], row["consumer_group"]) == (b"work", b"down", b"")
        until_row(queue, "work", "", lambda row: row["status"] != b"down")
        js.consumer("work", "hands")
        js.acknowledge(*js.pull("work", "hands", 5))
        assert counts(now(queue, "work", "hands")) == (8, 0, 0)
        assert row_of(poll(queue), "work", "") is None
        js.stream("full")
        js.consumer("full", "slow", max_ack_pending=3)
        js.fill("full.a", 17)
        assert len(js.pull("full", "slow", 5, expires_s=0.5)) == 3
        row = now(queue, "full", "slow")
        assert counts(row) == (14, 3, 0)
        assert row["reason"].startswith(b"max_ack_pending (3) is reached")
        js.consumer("full", "tries", max_deliver=2, ack_wait=SECOND // 5)
        for _ in range(2):
            assert len(js.pull("full", "tries", 3)) == 3
            time.sleep(0.3)
        assert len(js.pull("full", "tries", 1)) == 1  # the fourth message
        row = until_row(queue, "full", "tries", lambda row: row["pending"] == 1)
        assert row["inexact_reason"].startswith(b"at least 2 messages reached max_deliver")
        assert row_of(poll(queue), "none", "")["reason"] == b"the server has no such stream"
        js.api("CONSUMER.DELETE.work.hands")
        assert now(queue, "work", "")["lag_messages"] == 8
        js.api("STREAM.DELETE.work")
        row = gone(queue, "work", "")
        assert (row["status"], row["reason"]) == (b"gone", b"the stream was deleted; 0 s ago")


def test_messages_that_no_consumer_is_to_get(nats: Nats, js: NatsClient) -> None:
    js.stream("split", retention="workqueue")
    js.consumer("split", "a", filter_subject="split.a")
    js.fill("split.a", 5)
    with watched(BROKER, nats.url + "?streams=split,some") as queue:
        js.fill("split.b", 7)
        poll(queue)
        assert row_of(poll(queue), "split", "") is None  # the first message waits for the consumer
        js.acknowledge(*js.pull("split", "a", 5))
        poll(queue)
        row = now(queue, "split", "")
        assert (row["lag_messages"], row["exact"], row["consumers"]) == (7, 0, 0), row
        assert b"filters" in row["reason"] and row["oldest_undelivered_s"] > 0
        js.consumer("split", "b", filter_subject="split.b")
        assert row_of(poll(queue), "split", "") is None
        assert counts(now(queue, "split", "b")) == (7, 0, 0)
        js.stream("some", retention="interest")
        js.consumer("some", "a", filter_subject="some.a")
        js.fill("some.b", 2)  # dropped
        js.fill("some.a", 2)
        js.acknowledge(*js.pull("some", "a", 2))
        for _ in range(2):
            assert row_of(poll(queue), "some", "") is None


@pytest.mark.parametrize(("discard", "words"), [("old", b"deleted in"), ("new", b"stream full in")])
def test_the_time_until_a_stream_reaches_its_limit(nats: Nats, js: NatsClient, discard: str, words: bytes) -> None:
    js.stream("small", max_msgs=20_011, discard=discard)
    js.consumer("small", "late")
    with watched(BROKER, nats.url) as queue, client("publish", nats.port, "small.a", 100):
        row = until_row(queue, "small", "late", lambda row: words in row["reason"])
        left_s = (20_011 - row["lag_messages"]) / 100
        assert 0.7 * left_s < row["limit_in_s"] < 1.4 * left_s and row["forecast_err_s"] > 0, row


def test_all_of_many_accounts_are_watched(tmp_path: Path) -> None:
    """The server reports 1,024 accounts unless it is asked for more."""
    names = [f"A{n}" for n in range(1031)]
    accounts = ", ".join(f'{n}: {{ jetstream: enabled, users: [{{user: "{n}", password: "x"}}] }}' for n in names)
    server = Nats(tmp_path, more=f"accounts {{ {accounts} }}")
    try:
        source = NatsConsumers(NatsUrl.parse(server.url))
        (row,) = source.poll()
        assert row["status"] == "ok", row
        report = json.loads(source._client.get(_REPORT, time.monotonic() + 10))
        assert len(report["account_details"]) >= len(names)
    finally:
        source.close()
        server.end()


def test_timers_are_those_of_the_server(nats: Nats, js: NatsClient) -> None:
    js.stream("aged", max_age=3600 * SECOND)
    js.fill("aged.a", 13)
    js.consumer("aged", "once", ack_wait=90 * SECOND)
    js.consumer("aged", "often", backoff=[2 * SECOND, 50 * SECOND], max_deliver=5)
    js.pull("aged", "once", 7)
    js.pull("aged", "often", 5)
    js.stream("kept", duplicate_window=SECOND)
    js.put("kept.a", b"one")
    with watched(BROKER, nats.url) as queue:

        def timers() -> dict[tuple[str, str, str], dict[str, Any]]:
            queue.poll()
            rows = [dict(row) for row in queue.timers()]
            return {(row["destination"].decode(), row["object"].decode(), row["kind"]): row for row in rows}

        found = timers()
        state = js.api("STREAM.INFO.aged")["state"]
        assert {key: row["timers"] for key, row in found.items() if key[0] == "aged"} == {
            ("aged", "", "retention"): 13,
            ("aged", "", "dedup"): 1,
            ("aged", "once", "redelivery"): 7,
            ("aged", "often", "redelivery"): 5,
        }
        measured = {key: rule("nats", row["kind"], row["version"]) for key, row in found.items()}
        assert all(row["clock"] == (measured[key] and "checked") for key, row in found.items()), found
        assert found["aged", "", "retention"]["due_wall_ns"] == time_ns(state["first_ts"]) + 3600 * SECOND
        for name, why in (("once", "AckWait 90 s;"), ("often", "BackOff 2 50 s;")):
            row = found["aged", name, "redelivery"]
            known = measured["aged", name, "redelivery"]
            assert row["consequence"].startswith(why if known else f"not measured for nats {row['version']}"), row
        until(lambda: ("kept", "", "dedup") not in timers())  # its window has ended
        js.api("STREAM.PURGE.aged")
        # the other messages are pending and deleted
        until(lambda: timers().keys() <= {("aged", "", "dedup")}, turn=lambda: js.pull("aged", "once", 1, 0.2))


def test_a_stopped_a_killed_and_a_returned_server(nats: Nats) -> None:
    js = nats.client()
    for number in range(40):  # read before the other one, when it is started
        js.stream(f"first{number}", storage="file")
    js.stream("lasts", storage="file")
    js.consumer("lasts", "one")
    js.fill("lasts.a", 5)
    js.acknowledge(*js.pull("lasts", "one", 2))
    with watched(BROKER, nats.url + "?streams=lasts") as queue:
        assert counts(now(queue, "lasts", "one")) == (3, 0, 0)
        nats.pause()
        try:
            (row,) = poll(queue)
        finally:
            nats.signal(signal.SIGCONT)
        assert (row["status"], row["consumer_group"], failed(row)) == (b"down", b"one", "no_answer")
        assert row["poll_ns"] >= TIMEOUT_S * SECOND
        assert counts(until_row(queue, "lasts", "one", lambda row: row["status"] != b"down")) == (3, 0, 0)
        nats.end()
        row = until_row(queue, "lasts", "one", lambda row: failed(row) == "refused")
        assert row["status"] == b"down" and row["lag_messages"] < 0
        nats.start(wait=False)
        row = until_row(queue, "lasts", "one", lambda row: row["status"] != b"down", each_s=0)  # none that is gone
        nats.wait()
        js = nats.client()
        truth = js.api("CONSUMER.INFO.lasts.one")  # a killed server may have forgotten the last acknowledgements
        assert counts(row) == (truth["num_pending"], truth["num_ack_pending"], 0)
        assert row["lag_messages"] in (3, 5)
        for name in js.api("STREAM.NAMES")["streams"]:
            js.api(f"STREAM.DELETE.{name}")
    js.close()


def _once_there_is_a_leader(server: Nats, what: Callable[[NatsClient], object]) -> NatsClient:
    def client() -> NatsClient:
        js = server.client()
        what(js)
        return js

    return returned(client, (AssertionError, OSError), 120)


def test_only_the_leader_of_a_consumer_reports_it(nats: Nats, tmp_path: Path) -> None:
    """Three servers; the one that leads is killed, and another one goes on with the same queue."""
    ports = free_ports(3)
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers: list[Nats] = []
    try:
        for number, port in enumerate(ports):
            (tmp_path / str(number)).mkdir()
            more = f"cluster {{ name: shop, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
            servers.append(Nats(tmp_path / str(number), nats.command, more, f"n{number}"))
        js = _once_there_is_a_leader(servers[0], lambda js: js.stream("spread", num_replicas=3))
        js.consumer("spread", "one")
        js.fill("spread.a", 19)
        js.acknowledge(*js.pull("spread", "one", 6))
        js.close()
        queues = [BROKER.sources([server.url])[0] for server in servers]

        def reported() -> list[tuple[int, Any]]:
            """Empty if it is not one server alone that does."""
            found = [(number, row_of(poll(queue), "spread", "one")) for number, queue in enumerate(queues)]
            well = [(number, row) for number, row in found if row is not None and row["status"] == b"ok"]
            return well if len(well) == 1 and counts(well[0][1]) == (13, 0, 0) else []

        ((leader, row),) = until(reported, 60, 0.2)
        assert row["cluster"] == b"shop"
        servers[leader].end()
        ((other, row),) = until(reported, 60, 0.2)
        assert other != leader and row["cluster"] == b"shop"
        down = poll(queues[leader])  # the server is, but not the queue
        assert [(one["status"], one["destination"]) for one in down] == [(b"down", b"")]
        assert down[0]["peer"].tobytes() == peer_bytes("127.0.0.1", servers[leader].port)
        # One without an answer may have deleted it.
        delete = lambda js: js.api("STREAM.NAMES")["streams"] and js.api("STREAM.DELETE.spread")  # noqa: E731
        _once_there_is_a_leader(servers[other], delete).close()

        def reasons() -> list[tuple[int, bytes]]:
            found = [(n, row_of(poll(queue), "spread", "one")) for n, queue in enumerate(queues) if n != leader]
            return [(n, row["reason"].partition(b";")[0]) for n, row in found if row is not None]

        until(lambda: reasons() == [(other, b"the stream was deleted")], 60, why=reasons)
        for queue in queues:
            queue.close()
    finally:
        for server in servers:
            server.end()


def test_wrong_certificates_wrong_passwords_and_a_server_without_jetstream(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=x", "-addext"]
        subprocess.run([*command, *files, "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True)
    tls = f"tls {{ cert_file: {tmp_path}/ours.pem, key_file: {tmp_path}/ours.key }}"
    server = Nats(tmp_path, more=tls, scheme="https")
    try:
        for authority, failure in (("ours", ""), ("theirs", "login")):
            section = {"url": server.url, "ca_file": f"{tmp_path}/{authority}.pem"}
            with watched(BROKER, section) as queue:
                (row,) = poll(queue)
                assert (row["status"], failed(row)) == (b"down" if failure else b"ok", failure), row
                assert not failure or b"certificate" in row["reason"].lower()
    finally:
        server.end()
    server.config.write_text(f"listen: 127.0.0.1:{server.port}\nhttp: 127.0.0.1:{server.monitoring}\n")
    server.start()
    try:
        with watched(BROKER, f"http://127.0.0.1:{server.monitoring}") as queue:
            (row,) = poll(queue)
            assert (row["status"], row["reason"]) == (b"ok", b"JetStream is not enabled")
        with watched(BROKER, f"https://127.0.0.1:{server.monitoring}") as queue:
            assert poll(queue)[0]["reason"].endswith(b"the server speaks no TLS at this port")
    finally:
        server.end()


@pytest.mark.parametrize(
    ("say", "failure", "words"),
    [
        (_once(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"), "login", "HTTP 401"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"), "other", "monitoring port"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), "other", "monitoring port"),
        (_once(b'INFO {"server_id":"A"} \r\n'), "other", "name the monitoring port, http_port"),  # that for clients
    ],
)
def test_a_server_that_answers_badly_is_down_with_the_reason(
    say: Callable[[Any], None], failure: str, words: str
) -> None:
    """What is odd as HTTP, slow, endless or too large: test_rabbitmq.py, by the same client."""
    server = Odd(say)
    with watched(BROKER, f"http://guest:secret@127.0.0.1:{server.port}") as queue:
        (row,) = poll(queue)
    server.close()
    assert (row["status"], failed(row)) == (b"down", failure), row["reason"]
    assert words in row["reason"].decode() and b"secret" not in row["reason"]
