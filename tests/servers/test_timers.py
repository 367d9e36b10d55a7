"""Timers of a real Celery application and of keys of a real Redis, as the agent and ``clock what-if`` have them: each
time equals the server's own. What a step does to them is shown in a VM (tests/vm/test_timers.py).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.clock import sample
from agent.common.resp import RedisUrl, RespClient
from agent.queues.poller_process import BrokerPoller
from agent.queues.timer_effect import Timers, effects, plain
from agent.service.control import Control
from tests.commands import tickscope
from tests.patience import PATIENCE, until
from tests.servers.celery_pieces import Worker, application
from tests.servers.etcd import Etcd
from tests.servers.nats import SECOND, Nats
from tests.servers.test_redis_order import uuid7
from tests.servers.test_redis_streams import Redis

VISIBILITY_S, LATER_S = 600, 3600
RUNNING, HELD, LOCKS = 1, 7, 5
S = 10**9


class ObservedTimers:
    """The pollers of an agent, supervised as its loop does."""

    def __init__(self, servers: dict[str, str], ends: ExitStack) -> None:
        self.timers = Timers(lambda: 0)
        self._pollers = [BrokerPoller(kind, (url,), 0.1, self.timers) for kind, url in servers.items()]
        for one in self._pollers:
            ends.callback(one.close)

    def rows(self) -> list[dict[str, Any]]:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for one in self._pollers:
            list(one.drain(now_ns))
        return [plain(row) for row in self.timers.latest(now_ns) if row["timers"]]


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_times_are_the_servers_own_and_what_if_moves_them(ends: ExitStack, tmp_path: Path) -> None:
    redis = ends.enter_context(Redis(tmp_path))
    worker = Worker(redis.url, tmp_path, options={"visibility_timeout": VISIBILITY_S})
    ends.callback(worker.end)
    app = application(redis.url, visibility_timeout=VISIBILITY_S)
    for _ in range(HELD):  # the worker has room for them until it runs something
        app.send_task("early", (0,), countdown=LATER_S)
    until(lambda: redis.do("ZCARD", "unacked_index") == HELD)
    for _ in range(RUNNING):
        app.send_task("late", (LATER_S,))
    until(lambda: redis.do("ZCARD", "unacked_index") == RUNNING + HELD)
    for i in range(LOCKS):
        redis.do("SET", f"lock:{i}", "1", "PX", (LATER_S + i) * 1000)
    redis.do("SET", "lock:for ever", "1")
    flat: Any = redis.do("ZRANGE", "unacked_index", 0, -1, "WITHSCORES")
    due = {tag.decode(): (float(at) + VISIBILITY_S) * S for tag, at in zip(flat[::2], flat[1::2], strict=True)}
    due |= {f"lock:{i}": int(redis.do("PEXPIRETIME", f"lock:{i}")) * 10**6 for i in range(LOCKS)}  # type: ignore[call-overload]

    urls = {"celery": f"{redis.url}?visibility_timeout={VISIBILITY_S}", "redis": f"{redis.url}?locks=lock:*"}
    observed = ObservedTimers(urls, ends)
    count = RUNNING + HELD + HELD + LOCKS  # those that are held have a set time, too
    until(lambda: len(observed.rows()) == count)
    rows = observed.rows()
    assert {row["object"] for row in rows} == set(due)
    wall = {row["object"]: row["due_wall_ns"] for row in rows if row["clock"] == "wall"}
    assert all(abs(wall[name] - at) < 1000 for name, at in due.items())  # Redis prints scores as doubles
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    set_times = [row["was_due_ns"] - now_ns for row in rows if row["kind"] == "eta"]
    assert len(set_times) == HELD
    assert all(0 < ns < LATER_S * S for ns in set_times)

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "control.sock"))
    listening.listen()
    listening.setblocking(False)
    control, over = Control(listening, {"timers": observed.timers.document}), threading.Event()

    def serve() -> None:
        while not over.wait(0.02):
            control.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    ends.callback(control.close)
    ends.callback(thread.join)
    ends.callback(over.set)
    for size, moved_s in (("2h", None), ("-500ms", 0.5), ("1s", -1)):
        done = tickscope("clock", "what-if", "-o", "json", "--", size, TICKSCOPE_RUN_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["rows"]
        assert {(row["object"], row["kind"]) for row in found} == {(row["object"], row["kind"]) for row in rows}
        assert all(row["moved_ns"] == 0 and row["immune"] for row in found if row["kind"] == "eta")
        moved = [row["moved_ns"] for row in found if row["kind"] != "eta"]
        at_once = [row["is_due_ns"] == row["jump_t_ns"] for row in found if row["kind"] != "eta"]
        assert all(at_once) if moved_s is None else moved == [int(moved_s * S)] * len(due)

    done = tickscope("clock", "what-if", "--", "-500ms", TICKSCOPE_RUN_DIR=str(tmp_path), COLUMNS="300")
    assert done.stdout.count(b"500ms") == len(due), done.stdout
    assert done.stdout.count(b"boot+") >= len(rows), done.stdout

    redis.do("DEL", *(f"lock:{i}" for i in range(LOCKS)))
    worker.end()
    redis.do("DEL", "unacked", "unacked_index")
    until(lambda: observed.rows() == [])
    done = tickscope("clock", "what-if", "1s", TICKSCOPE_RUN_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, b""), done
    assert tickscope("clock", "what-if", "1s", TICKSCOPE_RUN_DIR=str(tmp_path / "no")).returncode == 4
    assert tickscope("clock", "what-if", "soon").returncode == 2


@pytest.mark.parametrize("form", ["UUIDv7", "Snowflake"])
def test_ids_that_a_step_back_would_repeat(ends: ExitStack, tmp_path: Path, form: str) -> None:
    """A producer makes an id each 5 ms; another stopped an hour ago, and a third one counts. What sorts before the
    highest id until which time is compared with ids of a clock that is behind by so much.
    """
    redis = ends.enter_context(Redis(tmp_path))

    def made(ms: int) -> str:
        return uuid7(ms) if form == "UUIDv7" else str(ms - 1_288_834_974_657 << 22 | 5 << 12)

    over, highest = threading.Event(), 0

    def produce() -> None:
        nonlocal highest
        client = RespClient(RedisUrl.parse(redis.url), timeout_s=20)
        while not over.wait(0.005):
            highest = time.time_ns() // 10**6
            client.pipeline([("XADD", "orders", "*", "id", made(highest)), ("XADD", "counted", "*", "id", highest)])
        client.close()

    hour_ago = time.time_ns() // 10**6 - 3_600_000
    for i in range(5):
        redis.do("XADD", "old", f"{hour_ago + i}-0", "id", made(hour_ago + i))
    thread = threading.Thread(target=produce)
    thread.start()
    ends.callback(thread.join)
    ends.callback(over.set)
    observed = ObservedTimers({"redis": f"{redis.url}?streams=orders,old,counted&id=id"}, ends)
    until(lambda: len(observed.rows()) == 2)
    for size_ms in (-7_200_000, -500, 7_200_000):
        now = sample.read()
        observed.rows()
        rows = [
            plain(one) for one in effects(observed.timers.latest(now.t_ns), now.t_ns, size_ms * 10**6, now.real_boot_ns)
        ]
        ids = {one["destination"]: one for one in rows}
        assert ids.keys() == {-7_200_000: {"orders", "old"}, -500: {"orders"}, 7_200_000: set()}[size_ms]
        assert all(
            one["object"] == form and one["kind"] == "id" and "sort before older" in one["consequence"] for one in rows
        )
        for one in rows:
            assert (one["clock"], one["moved_ns"], one["immune"]) == ("wall", -size_ms * 10**6, False)
        if "old" in ids:
            assert ids["old"]["due_wall_ns"] // 10**6 == hour_ago + 4
            assert ids["old"]["is_due_ns"] == (hour_ago + 4 + 7_200_000) * 10**6 - now.real_boot_ns
        if "orders" in ids:
            assert ids["orders"]["was_due_ns"] == now.t_ns
            # A clock that is behind by so much reaches the highest id of before the jump at that time.
            its_ms = (ids["orders"]["is_due_ns"] + now.real_boot_ns) // 10**6 + size_ms
            assert abs(its_ms - highest) < 1000 * PATIENCE


def test_a_jump_and_the_timers_of_etcd_and_nats(ends: ExitStack, tmp_path: Path) -> None:
    etcd, nats = Etcd(tmp_path / "etcd"), Nats(tmp_path)
    ends.callback(etcd.end)
    ends.callback(nats.end)
    etcd.nodes[0].ask("lease/grant", {"ID": "17", "TTL": str(LATER_S)})
    js = nats.client()
    ends.callback(js.close)
    js.stream("aged", max_age=LATER_S * SECOND)
    js.fill("aged.a", 13)
    js.consumer("aged", "c", ack_wait=LATER_S * SECOND)
    js.pull("aged", "c", 7)
    observed = ObservedTimers({"etcd": etcd.url, "nats": nats.url}, ends)
    until(lambda: [row["was_due_ns"] is not None for row in observed.rows() if row["kind"] == "lease"] == [True])
    until(lambda: len(observed.rows()) == 4)
    for size_s in (7200, -7200):
        now = sample.read()
        made = effects(observed.timers.latest(now.t_ns), now.t_ns, size_s * S, now.real_boot_ns)
        rows = {row["kind"]: row for row in map(plain, made)}
        assert {kind: row["timers"] for kind, row in rows.items()} == {
            "lease": 1,
            "retention": 13,
            "redelivery": 7,
            "dedup": 1,
        }
        assert {kind: row["clock"] for kind, row in rows.items()} == {
            "lease": "both" if rows["lease"]["version"].startswith("3.4.") else "monotonic",  # from 3.5 on
            "retention": "checked",
            "redelivery": "checked",
            "dedup": "checked",
        }
        early = size_s > 0
        lease, retention = rows["lease"], rows["retention"]
        still = early or lease["clock"] == "monotonic"
        assert lease["immune"] == still
        assert abs(lease["moved_ns"] - (0 if still else 7200 * S)) < S // 100
        assert (retention["immune"], retention["moved_ns"]) == (False, None if early else 7200 * S)
        assert 0 < retention["was_due_ns"] - now.t_ns <= LATER_S * S
        for kind in ("redelivery", "dedup"):
            assert (rows[kind]["immune"], rows[kind]["was_due_ns"], rows[kind]["moved_ns"]) == (False, None, None)
        word = "early" if early else "late"
        assert all(word in rows[kind]["consequence"] for kind in ("retention", "redelivery", "dedup"))
