"""Tasks of a real Celery application that real Redis servers lose, or do not lose, at a fail-over or a restart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Batch
from agent.common.clocks import boot_ns
from agent.common.resp import RedisUrl
from agent.correlate.correlator import Correlator
from agent.queues import redis_places
from agent.queues.brokers.celery import BROKER, CeleryQueues, CeleryServer
from agent.queues.judged import Judged
from agent.queues.queue import Queue
from tests.patience import until
from tests.servers.celery_pieces import Worker, application
from tests.servers.polled import poll, row_of
from tests.servers.test_celery import redis, row, state, unacked, watch, worker
from tests.servers.test_redis_failover import Pair
from tests.servers.test_redis_places import begin_sentinel, cli
from tests.servers.test_redis_streams import Redis
from tests.unit.correlate_scenarios import latest

__all__ = ["redis", "worker"]

BYTES = re.compile(rb"fail-over: writes of at least ([\d,]+) bytes of the replication stream were lost(.*)")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


def answered(ask: Callable[[], Any]) -> Any:
    """The rows of the first poll that did not fail."""
    return until(lambda: [*rows] if b"down" not in (rows := ask())["status"].tolist() else [])


class Watched:
    """How tickscope follows the application: by one address, which leads to the promoted replica then, or by its list
    of brokers, of which the replica is the second.
    """

    def __init__(self, pair: Pair, brokers: int) -> None:
        ports = [pair.address.port] if brokers == 1 else [pair.primary.port, pair.replica.port]
        self.queues: list[Queue] = BROKER.sources([f"redis://127.0.0.1:{port}/0" for port in ports])

    def poll(self) -> Any:
        """Of the server that the application uses after the fail-over."""
        return [poll(queue) for queue in self.queues][-1]

    def after(self) -> Any:
        """The first poll that succeeds: the connections to the address were closed."""
        return answered(self.poll)

    def close(self) -> None:
        for queue in self.queues:
            queue.close()


def lost_bytes(pair: Pair, had: int) -> int:
    """Of the replication stream, what the primary had and the promoted replica has not."""
    return had - (int(pair.info(pair.replica)["second_repl_offset"]) - 1)


@pytest.mark.parametrize("brokers", [1, 2])
def test_tasks_that_a_promoted_replica_had_not_received_are_missed(pair: Pair, brokers: int) -> None:
    """In one queue tasks waited before, in the other one all of them are lost."""
    app, watched = application(pair.primary.url), Watched(pair, brokers)
    with closing(watched):
        for queue, n in (("celery", 5), ("mail", 1), ("kept", 2)):
            for _ in range(n):
                app.send_task("early", (0,), queue=queue)
        pair.primary.do("LPOP", "mail")
        pair.caught_up()
        watched.poll()
        assert set(watched.poll()["status"].tolist()) == {b"ok"}
        pair.link.cut()
        for queue, n in (("celery", 23), ("mail", 11)):
            for _ in range(n):
                app.send_task("early", (0,), queue=queue)
        watched.poll()
        had = int(pair.info(pair.primary)["master_repl_offset"])
        pair.fail_over()
        rows = watched.after()
        its = {name: row_of(rows, name.decode()) for name in (b"celery", b"kept", b"")}
        assert (its[b"celery"]["status"], its[b"celery"]["lag_messages"]) == (b"rewound", 5)
        assert its[b"celery"]["reason"] == b"fail-over: at least 23 messages are gone"
        assert its[b"kept"]["status"] == b"ok"
        if brokers == 1:  # the replica was not seen with these
            mail = row_of(rows, "mail")
            assert (mail["status"], mail["lag_messages"]) == (b"rewound", 0)
            assert mail["reason"] == b"fail-over: at least 11 messages are gone"
        assert its[b""]["status"] == b"rewound"
        claimed, more = BYTES.fullmatch(its[b""]["reason"]).groups()  # type: ignore[union-attr]
        assert lost_bytes(pair, had) - 200 < int(claimed.replace(b",", b"")) <= lost_bytes(pair, had)
        assert more == b", with at least 34 messages"
        assert row_of(watched.poll(), "")["status"] == b"rewound"  # for a minute


@pytest.fixture
def sentinel(pair: Pair, tmp_path: Path) -> Iterator[int]:
    """Its port."""
    (tmp_path / "s").mkdir()
    with begin_sentinel(tmp_path / "s", pair.primary, 300_000) as server:
        until(lambda: "slaves=1" in cli(server.port, "-a", "s3cr3t", "info", "sentinel"))
        yield server.port


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "nothing lost"])
@pytest.mark.parametrize("how", ["killed", "stopped", "ordered"])
def test_what_is_lost_when_sentinel_fails_over(
    pair: Pair, sentinel: int, how: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the servers to the finding. ordered: the former primary is well, and becomes a replica of the new one."""
    monkeypatch.setattr(redis_places, "ASK_NS", 200_000_000)
    app, correlator, found = application(pair.primary.url), Correlator(), list[Any]()
    serving, had = True, 0
    (queue,) = BROKER.sources([f"redis+sentinel://127.0.0.1:{sentinel}/shop/0?sentinel_password=s3cr3t"])

    def polled() -> Any:
        nonlocal had
        rows = poll(queue)
        correlator.feed(Batch("queue_lag", rows))
        if serving and (info := pair.info(pair.primary))["role"] == "master":
            had = int(info["master_repl_offset"])  # heartbeats and the like are lost, too
        found.extend(correlator.advance(boot_ns()))
        return rows

    with closing(queue):
        for _ in range(5):
            app.send_task("early", (0,))
        pair.caught_up()
        until(lambda: set(polled()["status"].tolist()) == {b"ok"})
        if lost:
            pair.link.cut()
        for _ in range(23):
            app.send_task("early", (0,))
        assert row_of(polled(), "celery")["lag_messages"] == 28
        if not lost:
            pair.caught_up()
        serving = how == "ordered"
        if how == "killed":
            pair.primary.end()
        elif how == "stopped":
            pair.primary.pause()
        else:
            cli(sentinel, "-a", "s3cr3t", "sentinel", "failover", "shop")
        new = pair.replica.port.to_bytes(2, "little")
        rows = until(
            lambda: (
                [*rows]
                if (rows := polled())["peer"][0].tobytes()[16:] == new and b"down" not in rows["status"].tolist()
                else []
            )
        )
        for _ in range(3):  # it stays so
            rows = [*polled()]
        its = row_of(rows, "celery")
        found.extend(correlator.advance(boot_ns() + 5 * 10**9))
        losses = [one for one in latest(found) if one["symptom"] == "entries_lost"]
        if not lost:
            assert [(one["destination"], one["status"], one["lag_messages"]) for one in rows] == [
                (b"celery", b"ok", 28)
            ]
            assert losses == []
            return
        assert (its["status"], its["lag_messages"]) == (b"rewound", 5)
        assert its["reason"] == b"fail-over: at least 23 messages are gone"
        claimed, more = BYTES.fullmatch(row_of(rows, "")["reason"]).groups()  # type: ignore[union-attr]
        truth = lost_bytes(pair, had)
        assert truth - 200 < int(claimed.replace(b",", b"")) <= truth
        assert more == b", with at least 23 messages"
        (loss,) = losses
        assert loss["cause"] == "failover", loss["sentence"]
        assert f"at least {claimed.decode()} bytes" in loss["sentence"]


def test_a_fail_over_under_load_claims_no_more_than_was_lost(pair: Pair, tmp_path: Path) -> None:
    """A worker takes tasks until its primary ends, some of them after the last poll; another one goes on with what the
    replica has.
    """
    app, watched = application(pair.primary.url), Watched(pair, 1)
    first = Worker(pair.primary.url, tmp_path)
    with closing(watched):
        for _ in range(7):
            app.send_task("early", (0.2,))
            watched.poll()
        until(lambda: len(first.did("end")) == 7)
        watched.poll()
        pair.caught_up()
        pair.link.cut()
        sent = [app.send_task("early", (0.2,)).id for _ in range(41)]
        until(lambda: len(first.did("begin")) > 12)
        waited = len(set(sent) - set(first.did("begin")))
        watched.poll()
        until(lambda: len(first.did("begin")) > 17)
        pair.primary.end()
        first.end()
        pair.fail_over()
        second = Worker(pair.replica.url, tmp_path)
        try:
            rows = watched.after()
            until(lambda: pair.replica.do("LLEN", "celery") == 0)
        finally:
            second.end()
        found = row_of(rows, "")
        assert found["status"] == b"rewound"
        words = BYTES.fullmatch(found["reason"])[2]  # type: ignore[index]
        assert waited - 10 < int(words.split()[4]) <= waited
        assert not set(second.did("begin")) & set(sent)


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_fail_over_that_lost_no_task_says_nothing(pair: Pair, tmp_path: Path, brokers: int) -> None:
    """Lost are heartbeats of an idle worker, and its mutex. New tasks arrive before the first poll after it."""
    options = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    app, its = application(pair.primary.url), Worker(pair.primary.url, tmp_path, queues="none", options=options)
    watched = Watched(pair, brokers)
    with closing(watched):
        app.send_task("late", (600,))
        pair.caught_up()
        watched.poll()
        pair.link.cut()
        cut = int(pair.info(pair.primary)["master_repl_offset"])
        until(lambda: int(pair.info(pair.primary)["master_repl_offset"]) > cut + 500)
        watched.poll()
        had = int(pair.info(pair.primary)["master_repl_offset"])
        its.end()
        pair.fail_over()
        assert lost_bytes(pair, had) > 300
        application(pair.replica.url).send_task("late", (600,))
        rows = watched.after()
        assert {one["status"] for one in rows} == {b"ok"}
        tasks = row_of(rows, "celery")
        assert tasks["lag_messages"] == 2
        # The list may have been empty on the other server after it was here.
        assert tasks["inexact_reason"].endswith(b" s or more")


def test_tasks_that_were_done_come_back(pair: Pair) -> None:
    """The replica has not received that they were taken. Its address is another one, as with Sentinel: no poll fails,
    and the tasks are older than the poll that found the queue empty.
    """
    app, queue = application(pair.primary.url), CeleryQueues(CeleryServer.parse(pair.primary.url))
    with closing(Judged("celery", queue)) as judged:
        poll(judged)
        for _ in range(5):
            app.send_task("early", (0,))
        pair.caught_up()
        assert row(judged)["lag_messages"] == 5
        pair.link.cut()
        for _ in range(5):
            pair.primary.do("RPOP", "celery")
        assert row(judged)["lag_messages"] == 0
        pair.fail_over()
        queue.use(RedisUrl.parse(pair.replica.url))
        rows = poll(judged)
        assert BYTES.fullmatch(row_of(rows, "")["reason"])[2] == b""  # type: ignore[index]
        back = row_of(rows, "celery")
        assert back["lag_messages"] == 5
        assert isnan(back["lag_s"])
        assert back["inexact_reason"] == b"age: 0.0 s or more"


def test_an_orderly_fail_over_says_nothing(pair: Pair) -> None:
    app, watched = application(pair.primary.url), Watched(pair, 1)
    with closing(watched):
        for _ in range(5):
            app.send_task("early", (0,))
        watched.poll()
        pair.caught_up()
        pair.fail_over()
        pair.replica.do("RPOP", "celery")
        rows = watched.after()
        assert [(one["destination"], one["status"], one["lag_messages"]) for one in rows] == [(b"celery", b"ok", 4)]


def test_a_restart_without_the_data(redis: Redis) -> None:
    app = application(redis.url)
    for _ in range(3):
        app.send_task("early", (0,))
    with closing(watch(redis.url)) as queue:
        assert row(queue)["status"] == b"ok"
        redis.end()
        redis.start()
        rows = answered(lambda: poll(queue))
        lost, server = row_of(rows, "celery"), row_of(rows, "")
        assert (lost["status"], lost["lag_messages"]) == (b"rewound", 0)
        assert lost["reason"].startswith(b"restarted or replaced: its binding is gone; 3 messages waited")
        assert server["reason"] == b"restarted or replaced: 1 queues are gone, with their bindings"


def test_a_restart_with_an_old_snapshot(redis: Redis) -> None:
    app = application(redis.url)
    for n in (5, 8):
        for _ in range(n):
            app.send_task("early", (0,))
        if n == 5:
            redis.do("SAVE")
    with closing(watch(redis.url)) as queue:
        assert row(queue)["lag_messages"] == 13
        redis.end()
        redis.start()
        after = until(lambda: (now := row(queue))["status"] != b"down" and now)
        assert (after["status"], after["lag_messages"]) == (b"rewound", 5)
        assert after["reason"] == b"restarted or replaced: at least 8 messages are gone"


def test_a_restart_with_all_data_says_nothing(tmp_path: Path, worker: Callable[..., Worker]) -> None:
    redis = Redis(tmp_path, "--appendonly", "yes")
    app = application(redis.url)
    for _ in range(5):
        app.send_task("late", (600,))
    worker_of = Worker(redis.url, tmp_path)
    try:
        with closing(watch(redis.url)) as queue:
            unacked(redis, 1)
            assert state(row(queue)) == (4, 1, 0)
            worker_of.end()
            redis.do("CONFIG", "SET", "appendfsync", "always")
            redis.end()
            redis.start()
            until(lambda: redis.do("PING") == b"PONG")
            redis.do("RPOP", "celery")  # as a worker does
            after = answered(lambda: poll(queue))
            assert [(one["destination"], one["status"], one["lag_messages"]) for one in after] == [
                (b"celery", b"ok", 3)
            ]
    finally:
        worker_of.end()
        redis.end()
