"""What waits in queues of a real RabbitMQ node, for how long and until when. Counts are prime, so that no doubling or
halving goes unseen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from agent.queues.judged import Judged
from tests.patience import PATIENCE
from tests.servers.rabbitmq import ROOT, Rabbit, StreamConsumer, client
from tests.servers.rabbitmq_pieces import counted, poll, rabbit, row_of, source, until

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
    row = until(queue, name, lambda row: row["status"] == b"stopped")
    assert b"no consumer" in row["reason"]
    with client("consume", rabbit.port, name, 13, "never"):
        again = until(queue, name, lambda row: row["redelivered"] > 0)
        assert again["redelivered"] == 13
    with client("publish", rabbit.port, name, 50), client("consume", rabbit.port, name, 20):
        until(queue, name, lambda row: row["in_per_s"] > 20 and row["out_per_s"] > 20)
        until(queue, name, lambda row: row["lag_messages"] <= 5)
    queue.close()


def test_growing_then_draining(rabbit: Rabbit) -> None:
    rabbit.declare("mails")
    queue = source(rabbit.url + "&queues=mails")
    with client("publish", rabbit.port, "mails", 40):
        row = until(queue, "mails", lambda row: row["status"] in (b"lagging", b"stopped"))
        assert row["lag_messages"] > 0
        assert row["exact"] == 0
        assert b"statistics" in row["inexact_reason"]
        assert 0 < row["lag_s"] < 60
        began = time.monotonic()
        until(queue, "mails", lambda row: row["lag_s"] > 8)
        assert time.monotonic() - began < 60 * PATIENCE
    with client("consume", rabbit.port, "mails", 10):
        row = until(queue, "mails", lambda row: row["lag_messages"] == 0)
        assert row["consumers"] == 1
        until(queue, "mails", lambda row: row["lag_s"] == 0)
    queue.close()


def test_a_stopped_consumer_takes_no_more_than_its_prefetch(rabbit: Rabbit) -> None:
    rabbit.declare("stops")
    queue = source(rabbit.url + "&queues=stops")
    with client("publish", rabbit.port, "stops", 40), client("consume", rabbit.port, "stops", 7) as consumer:
        until(queue, "stops", lambda row: row["out_per_s"] > 20)
        os.kill(consumer.pid, signal.SIGSTOP)
        row = until(queue, "stops", lambda row: row["status"] in (b"stalled", b"stopped"))
        assert (row["pending"], row["consumers"]) == (7, 1)
        assert row["lag_messages"] > 100
        assert row["out_per_s"] == 0
        assert row["in_per_s"] > 20
        os.kill(consumer.pid, signal.SIGCONT)
        until(queue, "stops", lambda row: row["lag_messages"] < 20 and row["status"] == b"ok")
    queue.close()


def test_age_of_the_first_message_that_has_a_time(rabbit: Rabbit) -> None:
    rabbit.declare("dated")
    rabbit.publish("dated", 3, timestamp=int(time.time()) - 60)
    queue = source(rabbit.url)
    row = until(queue, "dated", lambda row: not isnan(row["oldest_undelivered_s"]))
    assert 60 <= row["oldest_undelivered_s"] < 180
    rabbit.declare("undated")
    rabbit.publish("undated", 3)
    assert isnan(counted(queue, "undated", 3, 0, 0)["oldest_undelivered_s"])
    queue.close()


def test_a_stream_has_no_lag_by_what_it_keeps(rabbit: Rabbit) -> None:
    rabbit.declare("events", "stream")
    rabbit.publish("events", 11)
    queue = source(rabbit.url + "&queues=events")
    row = until(queue, "events", lambda row: row["consumers"] == 0)
    assert row["lag_messages"] < 0  # unknown
    assert b"stream" in row["inexact_reason"]
    with StreamConsumer(rabbit, "events", credit=3):  # each chunk has one message
        row = until(queue, "events", lambda row: row["consumers"] == 1)
        if rabbit.ctl("version").startswith("3."):  # which does not report it
            assert row["lag_messages"] < 0
        else:
            until(queue, "events", lambda row: row["lag_messages"] == 11 - 3)
            rabbit.publish("events", 5)
            until(queue, "events", lambda row: row["lag_messages"] == 16 - 3)
    until(queue, "events", lambda row: row["lag_messages"] < 0)
    queue.close()


def test_a_delay_queue_holds_delayed_messages_until_they_are_dead_lettered(rabbit: Rabbit) -> None:
    rabbit.declare("due")
    rabbit.declare("later", x_message_ttl=12_000, x_dead_letter_exchange="", x_dead_letter_routing_key="due")
    queue = source(rabbit.with_management + "&queues=later,due")
    rabbit.publish("later", 17)
    row = until(queue, "later", lambda row: row["delayed"] == 17)
    assert row["lag_messages"] == 0
    assert row["peer"].tobytes()[16:] == rabbit.port.to_bytes(2, "little")  # by the API's list of listeners
    assert row_of(poll(queue), "due")["lag_messages"] == 0
    row = until(queue, "due", lambda row: row["lag_messages"] == 17)
    assert isnan(row["in_per_s"])  # no channel published them
    until(queue, "later", lambda row: row["delayed"] == 0)
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
    end = time.monotonic() + 60 * PATIENCE
    while {(row["destination"].decode(), row["kind"]): row["timers"] for row in timers(queue)} != due:
        assert time.monotonic() < end, timers(queue)
        time.sleep(0.5)
    found = {(row["destination"].decode(), row["kind"]): row for row in timers(queue)}
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
        assert {row["clock"] for row in found.values()} == {None}
        assert all(row["consequence"] == f"not measured for rabbitmq {version}" for row in found.values())
    with client("consume", rabbit.port, "timed-by-policy", 1, "never"):
        until(queue, "timed-by-policy", lambda row: row["consumers"] == 1)
        assert "lease" not in {row["kind"] for row in timers(queue)}  # it is used
    rabbit.manage("DELETE", "policies/%2F/short")
    queue.close()

    queue = source(rabbit.with_management.replace("guest:guest", "guest:wrong") + "&queues=timed*")
    until(queue, "timed", lambda row: row["lag_messages"] == 17)
    (row,) = timers(queue)
    assert row["timers"] == 1
    refused = "management API: HTTP 401 Unauthorized: Login failed"
    assert row["consequence"] == refused or not version.startswith("3.10.")
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
        until(queue, "shop", lambda row: row["consumers"] == 1, 60)
        until(queue, "celery_delayed_0", lambda row: row["delayed"] == 0)  # the worker declares it last
        # Of 16 to 20 s, the first 16 are spent in one queue.
        sender = [sys.executable, "-m", "tests.servers.celery_rabbitmq", str(done), "17", "20"]
        subprocess.run(sender, cwd=ROOT, check=True)
        row = until(queue, "celery_delayed_4", lambda row: row["delayed"] == 17)
        assert row["lag_messages"] == 0
        assert delayed() == 17
        assert not done.exists()
        until(queue, "celery_delayed_4", lambda row: row["delayed"] == 0)
        until(queue, "shop", lambda row: done.exists() and len(done.read_text().split()) == 17)
        until(queue, "shop", lambda row: delayed() == 0)
    finally:
        worker.kill()
        worker.wait()
        queue.close()
