"""Redis Streams lag against a real redis-server. Counts are prime, so that no doubling or halving goes unseen."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from agent.common.resp import RedisUrl, RespClient
from agent.queues import redis_scan
from agent.queues.brokers.redis import BROKER, MAX_GROUPS, TOO_LARGE, RedisStreams
from agent.queues.judged import Judged
from agent.queues.poller_process import BrokerPoller
from agent.queues.redis_scan import MAX_STREAMS
from tests.chosen import OTHER_RELEASES
from tests.patience import listening
from tests.ports import free_port
from tests.releases import program, unpacked
from tests.servers.polled import one, poll, until_drained
from tests.servers.process import ServerProcess

#: This host's release (Debian 12: 7.0), and Debian 13's (8.0).
RELEASES = ("own", OTHER_RELEASES[0])
_LIBRARIES = ("atomic1", "c6", "cap2", "gcc-s1", "jemalloc2", "lzf1", "ssl3t64", "stdc++6", "systemd0", "zstd1")


def server_of(release: str) -> list[str]:
    """The beginning of the command line of one of ``RELEASES``."""
    if release == "own":
        return ["redis-server"]
    packages = ("redis-server", "redis-tools", "zlib1g", *(f"lib{name}" for name in _LIBRARIES))
    return program(unpacked(f"{release}-redis", release, packages), "usr/bin/redis-server")


class Redis(ServerProcess):
    """A private server on a free port. command: of ``server_of``."""

    def __init__(self, directory: Path, *options: str, command: Sequence[str] = ("redis-server",)) -> None:
        self.port = free_port()
        self.directory, self.options, self.command = directory, options, command
        self.start()

    def start(self) -> None:
        where = f"--port {self.port} --bind 127.0.0.1 --dir {self.directory}"
        self.run([*self.command, *where.split(), "--save", "", *self.options])
        listening(self.port, process=self.process)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def do(self, *command: str | int) -> object:
        client = RespClient(RedisUrl.parse(self.url), timeout_s=20)
        (reply,) = client.pipeline([command])
        client.close()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def add(self, stream: str, n: int, start: int = 1, age_ms: int = 0) -> None:
        client = RespClient(RedisUrl.parse(self.url), timeout_s=20)
        ((seconds, micros),) = client.pipeline([("TIME",)])
        ms = int(seconds) * 1000 + int(micros) // 1000 - age_ms
        client.pipeline([("XADD", stream, f"{ms}-{i}", "n", i) for i in range(start, start + n)])
        client.close()


@pytest.fixture(params=RELEASES)
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path, command=server_of(request.param)) as server:
        yield server


def test_lag_pending_and_ages_are_exact(redis: Redis) -> None:
    redis.add("jobs", 101, age_ms=60_000)
    redis.do("XGROUP", "CREATE", "jobs", "workers", "0")
    redis.do("XREADGROUP", "GROUP", "workers", "w1", "COUNT", 37, "STREAMS", "jobs", ">")
    redis.do("XCLAIM", "jobs", "workers", "w2", "0", *[r[0] for r in redis.do("XRANGE", "jobs", "-", "+", "COUNT", 5)])  # type: ignore[attr-defined]
    (queue,) = BROKER.sources([redis.url])
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    row = one(queue)
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    queue.close()
    assert (row["system"], row["destination"], row["consumer_group"]) == (b"redis", b"jobs", b"workers")
    assert (row["lag_messages"], row["exact"], row["inexact_reason"]) == (101 - 37, 1, b"")
    assert (row["pending"], row["redelivered"], row["consumers"]) == (37, 5, 2)
    assert 60 <= row["oldest_undelivered_s"] < 120
    assert 60 <= row["oldest_pending_s"] < 120
    assert before < row["t_ns"] < after
    assert 0 < row["poll_ns"] <= after - before
    assert row["status"] == b"ok"
    assert row["peer"].tobytes() == b"\0" * 10 + b"\xff\xff\x7f\0\0\x01" + redis.port.to_bytes(2, "little")


def test_a_group_at_the_end_has_no_lag_and_no_oldest_entry(redis: Redis) -> None:
    redis.add("jobs", 7)
    redis.do("XGROUP", "CREATE", "jobs", "late", "$")
    redis.do("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")
    (queue,) = BROKER.sources([redis.url])
    rows = poll(queue)
    assert rows["destination"].tolist() == [b"empty", b"jobs"]
    assert rows["lag_messages"].tolist() == [0, 0]
    assert rows["exact"].tolist() == [1, 1]
    assert np.isnan(rows["oldest_undelivered_s"]).all()
    assert np.isnan(rows["oldest_pending_s"]).all()


def test_a_group_before_the_first_entry_is_exact_in_spite_of_deletions(redis: Redis) -> None:
    redis.add("jobs", 53)
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    ids = [entry[0] for entry in redis.do("XRANGE", "jobs", "-", "+")]  # type: ignore[attr-defined]
    redis.do("XDEL", "jobs", *ids[20:23])
    row = one(BROKER.sources([redis.url])[0])
    assert (row["lag_messages"], row["exact"]) == (50, 1)


def test_the_last_entry_deleted_leaves_no_lag(redis: Redis) -> None:
    redis.add("jobs", 3)
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    redis.do("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "jobs", ">")
    redis.do("XDEL", "jobs", redis.do("XREVRANGE", "jobs", "+", "-", "COUNT", 1)[0][0])  # type: ignore[index]
    row = one(BROKER.sources([redis.url])[0])
    assert (row["lag_messages"], row["exact"]) == (0, 1)


def test_ids_that_are_no_times_have_no_age(redis: Redis) -> None:
    for i in range(1, 6):
        redis.do("XADD", "jobs", f"{i}-0", "a", "b")
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    row = one(BROKER.sources([redis.url])[0])
    assert row["lag_messages"] == 5
    assert isnan(row["oldest_undelivered_s"])
    assert isnan(row["lag_s"])


def test_named_streams_and_patterns_select(redis: Redis) -> None:
    for name in ("mail:a", "mail:b", "orders", "other"):
        redis.add(name, 3)
        redis.do("XGROUP", "CREATE", name, "g", "0")
    redis.do("SET", "mail:string", "x")
    assert poll(BROKER.sources([redis.url + "?streams=orders"])[0])["destination"].tolist() == [b"orders"]
    assert poll(BROKER.sources([redis.url + "?streams=mail:*"])[0])["destination"].tolist() == [b"mail:a", b"mail:b"]
    assert len(poll(BROKER.sources([redis.url])[0])) == 4
    rows = poll(BROKER.sources([redis.url + "?streams=missing,orders"])[0])
    assert sorted(rows["destination"].tolist()) == [b"missing", b"orders"]
    assert b"no such key" in rows["reason"][rows["destination"] == b"missing"][0]


def test_named_streams_come_first_and_missing_ones_are_reported_beside_a_pattern(redis: Redis) -> None:
    for name in ("zorders", *(f"mail{i:03d}" for i in range(MAX_STREAMS + 1))):
        redis.do("XGROUP", "CREATE", name, "g", "$", "MKSTREAM")
    rows = poll(BROKER.sources([redis.url + "?streams=zorders,ordrs,mail*"])[0])
    assert b"zorders" in rows["destination"][rows["consumer_group"] == b"g"].tolist()
    assert b"no such key" in rows["reason"][rows["destination"] == b"ordrs"][0]


def test_a_keyspace_not_yet_looked_through_is_reported(redis: Redis) -> None:
    client = RespClient(RedisUrl.parse(redis.url), timeout_s=20)
    for start in range(0, 7000, 1000):
        client.pipeline([("SET", f"key{i}", "x") for i in range(start, start + 1000)])
    client.close()
    redis.do("XGROUP", "CREATE", "late", "g", "$", "MKSTREAM")
    (queue,) = BROKER.sources([redis.url])
    output = [b"still being scanned" in poll(queue)["reason"].tobytes() for _ in range(6)]
    assert output[0]
    assert not output[-1]
    assert poll(queue)["destination"].tolist() == [b"late"]


def test_streams_of_one_name_in_two_databases_are_two_queues(redis: Redis) -> None:
    redis.add("jobs", 5)
    redis.do("XGROUP", "CREATE", "jobs", "workers", "0")
    assert redis.do("MOVE", "jobs", 3) == 1
    redis.add("jobs", 2)
    redis.do("XGROUP", "CREATE", "jobs", "workers", "0")
    found = {}
    for queue in BROKER.sources([redis.url, redis.url.removesuffix("0") + "3"]):
        row = one(queue)
        found[bytes(row["cluster"])] = int(row["lag_messages"])
        queue.close()
    server = b"127.0.0.1:%d" % redis.port
    assert found == {server: 2, server + b"/3": 5}


def test_long_names_that_begin_alike_stay_apart(redis: Redis) -> None:
    names = [f"tenant-{'x' * 60}-{end}" for end in "ab"]
    for name, group in zip(names, reversed(names), strict=True):
        redis.do("XGROUP", "CREATE", name, group, "$", "MKSTREAM")
    rows = poll(BROKER.sources([redis.url])[0])
    assert len(set(rows["destination"].tolist())) == len(set(rows["consumer_group"].tolist())) == 2
    assert all(len(name) == 64 and name.startswith(b"tenant-xxx") for name in rows["destination"].tolist())


def test_a_new_stream_of_a_small_server_shows_at_the_next_poll(redis: Redis) -> None:
    (queue,) = BROKER.sources([redis.url])
    (alone,) = poll(queue)
    assert (alone["destination"], alone["status"], alone["server_role"]) == (b"", b"ok", b"primary")
    redis.add("late", 3)
    redis.do("XGROUP", "CREATE", "late", "g", "0")
    assert poll(queue)["lag_messages"].tolist() == [3]


def test_more_streams_or_groups_than_are_watched_are_reported(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_scan, "REDISCOVER_NS", 0)
    for i in range(MAX_STREAMS):
        redis.do("XGROUP", "CREATE", f"s{i:04d}", "workers", "$", "MKSTREAM")
    queue = Judged("redis", RedisStreams(RedisUrl.parse(redis.url), timeout_s=20))
    assert len(poll(queue)) == MAX_STREAMS == MAX_GROUPS
    redis.do("XGROUP", "CREATE", "s0000", "others", "$")
    *rows, output = poll(queue)
    assert len(rows) == MAX_GROUPS
    assert output["reason"].startswith(f"more than {MAX_GROUPS} groups".encode())
    redis.do("XGROUP", "DESTROY", "s0000", "others")
    redis.do("XGROUP", "CREATE", "t", "workers", "$", "MKSTREAM")
    *rows, deleted, output = poll(queue)
    assert (deleted["destination"], deleted["consumer_group"], deleted["status"]) == (b"s0000", b"others", b"gone")
    assert [r["destination"] for r in rows] == [f"s{i:04d}".encode() for i in range(MAX_STREAMS)]
    assert output["reason"].startswith(f"more than {MAX_STREAMS} streams".encode())
    assert output["reason"].endswith(b"?streams= in the server's URL")
    redis.do("DEL", "t")
    assert np.count_nonzero(poll(queue)["status"] == b"ok") == MAX_STREAMS
    queue.close()


def test_rates_are_arrivals_and_acknowledgements(redis: Redis) -> None:
    redis.add("jobs", 2)
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    (queue,) = BROKER.sources([redis.url])
    first = one(queue)
    assert isnan(first["in_per_s"])
    redis.add("jobs", 31, start=10)
    got = redis.do("XREADGROUP", "GROUP", "g", "c", "COUNT", 19, "STREAMS", "jobs", ">")
    redis.do("XACK", "jobs", "g", *[e[0] for e in got[0][1][:17]])  # type: ignore[index]
    second = one(queue)
    seconds = (second["t_ns"] - first["t_ns"]) / 1e9
    assert second["in_per_s"] * seconds == pytest.approx(31, rel=0.2)
    assert second["out_per_s"] * seconds == pytest.approx(17, rel=0.2)


def test_who_holds_the_oldest_message_and_who_takes_nothing(redis: Redis) -> None:
    redis.do("XGROUP", "CREATE", "jobs", "g", "$", "MKSTREAM")
    (queue,) = BROKER.sources([redis.url])
    read = ("XREADGROUP", "GROUP", "g")
    rows = []
    for turn in range(4):
        redis.add("jobs", 2, start=10 * turn + 1)
        for name in ("works", "stops"):
            if name == "works" or turn < 2:
                redis.do(*read, name, "COUNT", 1, "STREAMS", "jobs", ">")
        if turn == 2:
            redis.do(*read, "works", "STREAMS", "jobs", ">")
        time.sleep(0.05)
        rows.append(one(queue))
    assert rows[0]["idle_consumer"] == b""  # nobody has been seen to work yet
    assert rows[1]["idle_consumer"] in (b"works", b"stops")
    assert rows[3]["idle_consumer"] == b"stops"
    assert 0.1 <= rows[3]["idle_s"] < 5
    assert rows[3]["holder"] == b"works"


def test_errors_by_which_it_refuses_service_are_counted_and_ours_are_not(redis: Redis) -> None:
    (queue,) = BROKER.sources([redis.url + "?streams=missing"])
    assert isnan(poll(queue)[-1]["errors_per_s"])

    def refused(times: int) -> np.void:
        for _ in range(times):
            with pytest.raises(Exception, match=r"OOM|READONLY"):
                redis.do("SET", "a", "b")
        with pytest.raises(Exception, match="ERR"):
            redis.do("NONSENSE")
        return poll(queue)[-1]

    assert refused(0)["errors_per_s"] == 0
    redis.do("CONFIG", "SET", "maxmemory", 1)
    full = refused(3)
    assert (full["errors"], full["memory_limit_bytes"]) == (b"OOM 3", 1)
    assert full["memory_bytes"] > 1
    assert full["errors_per_s"] > 0
    redis.do("CONFIG", "SET", "maxmemory", 0)
    redis.do("REPLICAOF", "127.0.0.1", 1)
    only = refused(5)
    assert (only["errors"], only["server_role"]) == (b"READONLY 5", b"cut off")
    redis.do("REPLICAOF", "NO", "ONE")
    well = refused(0)
    assert (well["errors"], well["server_role"], well["errors_per_s"]) == (b"", b"primary", 0)
    assert well["clients_limit"] > well["clients"] > 0
    assert well["clients_refused"] == 0


@pytest.mark.parametrize("named", ["", "?streams=jobs"])
def test_a_stalled_a_dead_and_a_returned_server(redis: Redis, named: str) -> None:
    redis.add("jobs", 5)
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    queue = Judged("redis", RedisStreams(RedisUrl.parse(redis.url + named), timeout_s=0.1))
    assert one(queue)["status"] == b"ok"
    redis.pause()
    row = one(queue)
    redis.go_on()
    assert (row["status"], row["destination"], row["consumer_group"]) == (b"down", b"jobs", b"g")
    assert b"no answer within 0.1 s" in row["reason"]
    assert row["poll_ns"] >= 100_000_000
    redis.end()
    row = one(queue)
    assert row["status"] == b"down"
    assert b"refused" in row["reason"]
    redis.start()
    redis.add("jobs", 3)
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    row = one(queue)
    assert (row["status"], row["lag_messages"]) == (b"rewound", 3)  # it has no persistence
    assert b"at least 2 entries are gone" in row["reason"]


def test_a_server_that_takes_no_more_clients_reports_it(redis: Redis) -> None:
    holding = RespClient(RedisUrl.parse(redis.url), timeout_s=20)
    holding.pipeline([("CONFIG", "SET", "maxclients", 1)])
    (queue,) = BROKER.sources([redis.url])
    reasons = [bytes(one(queue)["reason"]) for _ in range(5)]
    assert any(reason.endswith(b"max number of clients reached") for reason in reasons), reasons
    holding.close()


def test_a_server_that_never_answered_is_one_down_row() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        row = one(BROKER.sources([f"redis://:secret@127.0.0.1:{nobody.getsockname()[1]}/0"])[0])
    assert (row["status"], row["system"], row["destination"]) == (b"down", b"redis", b"")
    assert b"secret" not in row["reason"]


def test_a_wrong_password_is_reported_and_not_repeated(redis: Redis) -> None:
    redis.do("CONFIG", "SET", "requirepass", "right")
    (queue,) = BROKER.sources([f"redis://:wrong@127.0.0.1:{redis.port}/0"])
    for _ in range(5):
        row = one(queue)
        assert row["status"] == b"down"
        assert b"login refused: WRONGPASS" in row["reason"]
    (missing,) = BROKER.sources([redis.url])
    assert b"NOAUTH" in one(missing)["reason"]
    client = RespClient(RedisUrl.parse(f"redis://:right@127.0.0.1:{redis.port}"), timeout_s=20)
    (stats,) = client.pipeline([("INFO", "errorstats")])
    assert b"errorstat_WRONGPASS:count=1\r\n" in stats
    (queue,) = BROKER.sources([f"redis://:right@127.0.0.1:{redis.port}/0"])
    client.pipeline([("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")])
    assert one(queue)["status"] == b"ok"


def test_the_brokers_process_asks_it(redis: Redis) -> None:
    redis.do("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    redis.add("s", 13)
    brokers = BrokerPoller("redis", (redis.url,), 0.1)
    rows = until_drained(brokers, lambda rows: len(rows) >= 3)
    brokers.close()
    assert {
        (row["system"], row["destination"], row["consumer_group"], row["lag_messages"], row["exact"], row["status"])
        for row in rows
    } == {(b"redis", b"s", b"g", 13, 1, b"ok")}
    assert all(a["t_ns"] < b["t_ns"] for a, b in itertools.pairwise(rows))
    assert brokers.failures() == {}


def test_only_the_parser_is_imported() -> None:
    code = (
        "import sys; import agent.queues.brokers.redis; print([m for m in ('redis', 'asyncio', 'ssl', 'numpy') if m in"
        " sys.modules])"
    )
    import sys

    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert out.stdout.strip() == "[]"


def test_a_stream_with_entries_that_are_too_large_hides_no_other(redis: Redis) -> None:
    redis.add("jobs", 11)
    redis.do("XGROUP", "CREATE", "jobs", "g", "0")
    for _ in range(2):
        redis.do("XADD", "images", "*", "image", "x" * (5 << 20))
    redis.do("XGROUP", "CREATE", "images", "g", "0")
    queue = Judged("redis", RedisStreams(RedisUrl.parse(redis.url), 20))
    for _ in range(2):
        rows = poll(queue)
        assert rows["destination"][rows["lag_messages"] == 11].tolist() == [b"jobs"]
        assert {bytes(row["reason"]) for row in rows if row["destination"] == b"images"} == {TOO_LARGE.encode()}
        assert b"down" not in rows["status"].tolist()
    queue.close()
