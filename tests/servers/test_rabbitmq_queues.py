"""What waits in queues of a real RabbitMQ node, for how long and until when. Counts are prime, so that no doubling or
halving goes unseen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import amqp
import pytest

from agent.queues.brokers.rabbitmq import RabbitQueues, RabbitUrl
from agent.queues.judged import Judged
from tests.patience import PATIENCE, until
from tests.servers.polled import poll, row_of, until_row
from tests.servers.process import ROOT
from tests.servers.rabbitmq import Rabbit, StreamConsumer, client, release_root
from tests.servers.rabbitmq_pieces import counted, rabbit, source

__all__ = ["rabbit"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_ready_unacknowledged_consumers_and_rates(rabbit: Rabbit, kind: str) -> None:
    name = f"orders-{kind}"
    rabbit.declare(name, kind)
    queue = source(rabbit.url + f"&queues={name}")
    rabbit.publish(name, 101)
    row = counted(queue, name, 101, 0, 0)
    assert (row["system"], row["cluster"]) == (b"rabbitmq", f"shop-{rabbit.port}".encode())
    assert row["peer"].tobytes() == b"\0" * 10 + b"\xff\xff\x7f\0\0\x01" + rabbit.port.to_bytes(2, "little")
    assert row["memory_limit_bytes"] > row["memory_bytes"] > 1 << 20
    with client("consume", rabbit.port, name, 37, "never"):
        row = counted(queue, name, 101 - 37, 37, 1)
        assert rabbit.counts(name) == (101 - 37, 1)
        assert row["redelivered"] == 0
    counted(queue, name, 101, 0, 0)
    row = until_row(queue, name, "", lambda row: row["status"] == b"stopped")
    assert b"no consumer" in row["reason"]
    with client("consume", rabbit.port, name, 13, "never"):
        again = until_row(queue, name, "", lambda row: row["redelivered"] > 0)
        assert again["redelivered"] == 13
    with client("publish", rabbit.port, name, 50), client("consume", rabbit.port, name, 20):
        until_row(queue, name, "", lambda row: row["in_per_s"] > 20 and row["out_per_s"] > 20)
        until_row(queue, name, "", lambda row: max(row["lag_at_least"], 0) <= 5)
    queue.close()


class Script:
    """Publishes messages with confirms, or takes them, ``per_step`` each 20 ms, and knows how many are ready."""

    def __init__(self, rabbit: Rabbit, name: str) -> None:
        self.per_step, self.takes = 0, False
        self._name, self._connection = name, rabbit.connect()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._sent_ns, self._confirmed_ns, self._begun, self._taken = list[int](), list[int](), 0, 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def ready(self) -> tuple[int, int]:
        """At least and at most."""
        with self._lock:
            return len(self._confirmed_ns) - self._begun, len(self._sent_ns) - self._taken

    def oldest_ns(self) -> tuple[int, int] | None:
        """Before and after the first ready message was published, time.monotonic_ns."""
        with self._lock:
            if self._begun >= len(self._confirmed_ns):
                return None
            return self._sent_ns[self._taken], self._confirmed_ns[self._begun]

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        channel = self._connection.channel()
        while not self._ended.wait(0.02):
            for _ in range(self.per_step):
                if self.takes:
                    with self._lock:
                        self._begun += 1
                    found = channel.basic_get(self._name, no_ack=True)
                    with self._lock:
                        self._taken += found is not None
                        self._begun = self._taken
                else:
                    with self._lock:
                        self._sent_ns.append(time.monotonic_ns())
                    channel.basic_publish(amqp.Message("x"), routing_key=self._name)
                    with self._lock:
                        self._confirmed_ns.append(time.monotonic_ns())


@pytest.fixture(params=["own", "trixie"])
def seldom(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rabbit]:
    """A node that makes statistics every 5 s, as by default."""
    server = Rabbit(tmp_path, 5000, None if request.param == "own" else release_root(request.param))
    yield server
    server.end()


def test_the_truth_is_within_the_bounds_at_each_poll(seldom: Rabbit) -> None:
    seldom.declare("fast")
    queue = Judged("rabbitmq", RabbitQueues(RabbitUrl.parse(seldom.url + "&queues=fast"), timeout_s=20))
    script, phases, ages, turn = Script(seldom, "fast"), Counter[str](), 0, 0
    try:
        for phase, turns, per_step in (("idle", 5, 0), ("published", 20, 5), ("taken", 17, 3), ("left", 12, 0)):
            script.per_step, script.takes, until_turn = per_step, phase == "taken", turn + turns
            limit = time.monotonic() + 30 * PATIENCE
            while turn < until_turn or (phase != "idle" and phases[phase] < 5 and time.monotonic() < limit):
                before, first, asked_ns = script.ready(), script.oldest_ns(), time.monotonic_ns()
                row = row_of(poll(queue), "fast")
                after, then, answered_ns = script.ready(), script.oldest_ns(), time.monotonic_ns()
                if row is not None and row["lag_at_least"] >= 0:
                    assert row["lag_at_least"] <= max(before[1], after[1]), (turn, before, row, after)
                    assert row["lag_messages"] >= min(before[0], after[0]), (turn, before, row, after)
                    phases[phase] += 1
                    if row["lag_error_s"] >= 0 and first and then:
                        assert (row["lag_s"] - row["lag_error_s"]) * 1e9 <= answered_ns - first[0], (turn, row)
                        assert (row["lag_s"] + row["lag_error_s"]) * 1e9 >= asked_ns - then[1], (turn, row)
                        ages += 1
                turn += 1
                time.sleep(0.7)
        assert min(phases[name] for name in ("published", "taken", "left")) >= 5 and ages > 10, (phases, ages)
        assert row["lag_at_least"] == row["lag_messages"] == script.ready()[0]
    finally:
        script.end()
        queue.close()


@pytest.mark.parametrize(("seconds", "prefetch"), [(0.3, 1), (0, 300)])
def test_the_capacity_of_slow_and_of_fast_consumers(rabbit: Rabbit, seconds: float, prefetch: int) -> None:
    name = f"capacity-{prefetch}"
    rabbit.declare(name)
    queue = source(rabbit.url + f"&queues={name}")
    assert isnan(until_row(queue, name, "", lambda row: row["consumers"] == 0)["consumer_capacity"])
    with client("publish", rabbit.port, name, 40), client("consume", rabbit.port, name, prefetch, seconds):
        until_row(
            queue, name, "", lambda row: row["consumer_capacity"] < 0.3 if seconds else row["consumer_capacity"] > 0.9
        )
    until_row(queue, name, "", lambda row: row["consumers"] == 0 and isnan(row["consumer_capacity"]))
    queue.close()


def test_growing_then_draining(rabbit: Rabbit) -> None:
    rabbit.declare("mails")
    queue = source(rabbit.url + "&queues=mails")
    until_row(queue, "mails", "", lambda row: row["lag_s"] == 0)
    with client("publish", rabbit.port, "mails", 40):
        row = until_row(queue, "mails", "", lambda row: row["status"] in (b"lagging", b"stopped"))
        assert row["lag_messages"] > 0
        assert row["exact"] == 0
        assert b"statistics" in row["inexact_reason"]
        row = until_row(queue, "mails", "", lambda row: row["lag_s"] > 0)
        assert row["lag_s"] < 60 and 0 < row["lag_error_s"] < 5
        began = time.monotonic()
        until_row(queue, "mails", "", lambda row: row["lag_s"] > 8)
        assert time.monotonic() - began < 60 * PATIENCE
    with client("consume", rabbit.port, "mails", 10):
        until_row(queue, "mails", "", lambda row: (row["lag_messages"], row["consumers"]) == (0, 1))
        until_row(queue, "mails", "", lambda row: row["lag_s"] == 0)
    queue.close()


def test_a_stopped_consumer_takes_no_more_than_its_prefetch(rabbit: Rabbit) -> None:
    rabbit.declare("stops")
    queue = source(rabbit.url + "&queues=stops")
    with client("publish", rabbit.port, "stops", 40), client("consume", rabbit.port, "stops", 7) as consumer:
        until_row(queue, "stops", "", lambda row: row["out_per_s"] > 20)
        os.kill(consumer.pid, signal.SIGSTOP)
        row = until_row(queue, "stops", "", lambda row: row["status"] in (b"stalled", b"stopped"))
        assert (row["pending"], row["consumers"]) == (7, 1)
        assert row["lag_messages"] > 100
        assert row["out_per_s"] == 0
        assert row["in_per_s"] > 20
        os.kill(consumer.pid, signal.SIGCONT)
        until_row(queue, "stops", "", lambda row: max(row["lag_at_least"], 0) < 20 and row["status"] == b"ok")
    queue.close()


def test_a_purged_queue_is_not_read_and_a_deleted_one_is_gone(rabbit: Rabbit) -> None:
    rabbit.declare("purged")
    queue = source(rabbit.url + "&queues=purged*")
    with client("publish", rabbit.port, "purged", 40):
        until_row(queue, "purged", "", lambda row: row["lag_messages"] > 100 and row["in_per_s"] > 20)
    with rabbit.connect() as connection:
        assert connection.channel().queue_purge("purged") > 90  # what was counted last may be newer
    for _ in range(10):
        row = row_of(poll(queue), "purged")
        assert not row["out_per_s"] > 0 and row["status"] not in (b"draining", b"rewound")
        time.sleep(0.5)
    until_row(queue, "purged", "", lambda row: (row["lag_messages"], row["status"]) == (0, b"ok"))
    with rabbit.connect() as connection:
        connection.channel().queue_delete("purged")
    row = until_row(queue, "purged", "", lambda row: row["status"] == b"gone")
    assert b"the queue was deleted; " in row["reason"] and row["lag_messages"] < 0
    rabbit.declare("purged")
    rabbit.publish("purged", 7)
    until_row(queue, "purged", "", lambda row: row["lag_messages"] == 7)
    queue.close()


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_queue_of_each_type_that_was_deleted_is_gone(rabbit: Rabbit, kind: str) -> None:
    """The node counts each deletion, without the management API."""
    rabbit.declare(f"ends-{kind}", kind)
    queue = source(rabbit.url + f"&queues=ends-{kind}")
    until_row(queue, f"ends-{kind}", "", lambda row: row["consumers"] == 0)
    with rabbit.connect() as connection:
        connection.channel().queue_delete(f"ends-{kind}")
    until_row(queue, f"ends-{kind}", "", lambda row: row["status"] == b"gone")
    queue.close()


def test_age_of_the_first_message_that_has_a_time(rabbit: Rabbit) -> None:
    rabbit.declare("dated")
    rabbit.publish("dated", 3, timestamp=int(time.time()) - 60)
    queue = source(rabbit.url)
    row = until_row(queue, "dated", "", lambda row: row["oldest_undelivered_s"] >= 60)  # before, as long as it was seen
    assert row["oldest_undelivered_s"] < 180
    rabbit.declare("undated")
    rabbit.publish("undated", 3)
    assert not counted(queue, "undated", 3, 0, 0)["oldest_undelivered_s"] >= 60
    queue.close()


def test_a_stream_has_no_lag_by_what_it_keeps(rabbit: Rabbit) -> None:
    rabbit.declare("events", "stream")
    rabbit.publish("events", 11)
    queue = source(rabbit.url + "&queues=events")
    row = until_row(queue, "events", "", lambda row: row["consumers"] == 0)
    assert row["lag_messages"] < 0  # unknown
    assert b"stream" in row["inexact_reason"]
    with StreamConsumer(rabbit, "events", credit=3):  # each chunk has one message
        row = until_row(queue, "events", "", lambda row: row["consumers"] == 1)
        if rabbit.ctl("version").startswith("3."):  # which does not report it
            assert row["lag_messages"] < 0
        else:
            until_row(queue, "events", "", lambda row: row["lag_messages"] == 11 - 3)
            rabbit.publish("events", 5)
            until_row(queue, "events", "", lambda row: row["lag_messages"] == 16 - 3)
    until_row(queue, "events", "", lambda row: row["lag_messages"] < 0)
    queue.close()


def test_a_delay_queue_holds_delayed_messages_until_they_are_dead_lettered(rabbit: Rabbit) -> None:
    rabbit.declare("due")
    rabbit.declare("later", x_message_ttl=12_000, x_dead_letter_exchange="", x_dead_letter_routing_key="due")
    queue = source(rabbit.with_management + "&queues=later,due")
    rabbit.publish("later", 17)
    row = until_row(queue, "later", "", lambda row: row["delayed"] == 17)
    assert row["lag_messages"] == 0
    assert row["peer"].tobytes()[16:] == rabbit.port.to_bytes(2, "little")  # by the API's list of listeners
    assert row_of(poll(queue), "due")["lag_messages"] == 0
    row = until_row(queue, "due", "", lambda row: row["lag_messages"] == 17)
    assert isnan(row["in_per_s"])  # no channel published them
    until_row(queue, "later", "", lambda row: row["delayed"] == 0)
    queue.close()


def test_time_outs_of_messages_and_queues_are_timers(rabbit: Rabbit) -> None:
    rabbit.declare("timed", x_message_ttl=600_000)
    rabbit.declare("timed-later", "quorum", x_message_ttl=900_000, x_dead_letter_exchange="")
    rabbit.declare("timed-by-policy", x_expires=1_200_000)
    rabbit.declare("timed-empty", x_message_ttl=600_000)
    rabbit.declare("timed-not")
    policy = {"pattern": "^timed-by-policy$", "definition": {"message-ttl": 300_000, "expires": 9_000_000}}
    rabbit.manage("PUT", "policies/%2F/short", policy)
    counts = {"timed": 17, "timed-later": 11, "timed-by-policy": 5, "timed-not": 3}
    for name, count in counts.items():
        rabbit.publish(name, count)
    queue = source(rabbit.with_management + "&queues=timed*")
    due = {("timed", "ttl"): 17, ("timed-later", "eta"): 11, ("timed-by-policy", "ttl"): 5}
    due[("timed-by-policy", "lease")] = 1

    def shown() -> dict[tuple[str, str], Any]:
        return {(row["destination"].decode(), row["kind"]): row for row in timers(queue)}

    until(lambda: {key: row["timers"] for key, row in shown().items()} == due, 60, 0.5, why=shown)
    found = shown()
    version = rabbit.manage("GET", "overview")["rabbitmq_version"]
    assert {row["version"] for row in found.values()} == {version}
    if version.startswith("3.10."):  # as RULES has it
        clocks = {name: found[name]["clock"] for name in due}
        assert clocks.pop(("timed-later", "eta")) == clocks.pop(("timed-by-policy", "lease")) == "monotonic"
        assert set(clocks.values()) == {"checked"}
        words = [found[name]["consequence"] for name in due]
        after = (
            "600 s after each message",
            "900 s after each message",
            "300 s after each message",
            "1200 s after its last",
        )
        assert all(part in one for part, one in zip(after, words, strict=True)), words
    else:
        classic = {("timed", "ttl"), ("timed-by-policy", "ttl")} if version.startswith("4.0.") else set()
        assert {name for name, row in found.items() if row["clock"]} == classic
        unknown = [row["consequence"] for name, row in found.items() if name not in classic]
        assert set(unknown) == {f"not measured for rabbitmq {version}"}
    with client("consume", rabbit.port, "timed-by-policy", 1, "never"):
        until_row(queue, "timed-by-policy", "", lambda row: row["consumers"] == 1)
        assert "lease" not in {row["kind"] for row in timers(queue)}  # it is used
    rabbit.manage("DELETE", "policies/%2F/short")
    queue.close()

    queue = source(rabbit.with_management.replace("guest:guest", "guest:wrong") + "&queues=timed*")
    until_row(queue, "timed", "", lambda row: row["lag_messages"] == 17)
    (row,) = timers(queue)
    assert row["timers"] == 1
    refused = "management API: HTTP 401 Unauthorized: Login failed"
    assert row["consequence"].startswith(refused) or not version.startswith("3.10.")
    queue.close()


def timers(queue: Judged) -> list[Any]:
    """Rows of ``timer_effect`` after a poll."""
    poll(queue)
    return queue.timers()


def test_tasks_of_celery_with_a_countdown_are_delayed_until_they_are_due(
    rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", f"amqp://guest:guest@127.0.0.1:{rabbit.port}//")
    queue, done = source(rabbit.url + "&queues=shop,celery_delayed_*"), tmp_path / "done"

    def delayed() -> int:
        rows = poll(queue)
        return int(sum(row["delayed"] for row in rows if row["destination"].startswith(b"celery_delayed_")))

    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.servers.celery_rabbitmq", "worker", "-P", "solo"],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        until_row(queue, "shop", "", lambda row: row["consumers"] == 1, 60)
        until_row(queue, "celery_delayed_0", "", lambda row: row["delayed"] == 0)  # the worker declares it last
        # Of 16 to 20 s, the first 16 are spent in one queue.
        sender = [sys.executable, "-m", "tests.servers.celery_rabbitmq", str(done), "17", "20"]
        subprocess.run(sender, cwd=ROOT, check=True)
        row = until_row(queue, "celery_delayed_4", "", lambda row: row["delayed"] == 17)
        assert row["lag_messages"] == 0
        assert delayed() == 17
        assert not done.exists()
        until_row(queue, "celery_delayed_4", "", lambda row: row["delayed"] == 0)
        until_row(queue, "shop", "", lambda row: done.exists() and len(done.read_text().split()) == 17)
        until_row(queue, "shop", "", lambda row: delayed() == 0)
    finally:
        worker.kill()
        worker.wait()
        queue.close()
