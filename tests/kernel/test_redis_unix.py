"""Limiters in a real Redis that is asked by its Unix socket: every decision by the program's own log."""

from __future__ import annotations

import collections
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from limits import parse, storage, strategies

from agent.common.address import UNIX
from agent.kernel import bpf
from agent.redis_wire.ends import RedisServers
from agent.redis_wire.flows import Ends
from tests.kernel.test_redis_wire import BUCKET, GCRA_LIKE, Rig, go_asks, reported
from tests.servers.test_redis_streams import Redis


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("unix")
    path = directory / "redis.sock"
    one = Redis(directory, "--unixsocket", str(path))
    yield path
    one.end()


@pytest.fixture(scope="module", params=["", "redis_unix"])
def rig(place: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Both programs; the second as on kernels before 6.12."""
    one = Rig("on", set(), without=request.param)
    yield one
    one.close()


def test_decisions_by_the_programs_own_log(rig: Rig, place: Path) -> None:
    redis.Redis(unix_socket_path=str(place)).flushall()
    counted: collections.Counter[tuple[str, str]] = collections.Counter()

    def hits() -> None:
        limiter = strategies.FixedWindowRateLimiter(storage.RedisStorage(f"redis+unix://{place}"))
        for _ in range(23):
            allowed = limiter.hit(parse("7/hour"), "login", "anna")
            counted["limits", "allowed" if allowed else "refused"] += 1

    rows = rig.during(hits)
    assert reported(rows) == counted and counted.total() == 23
    assert set(rows["comm"].tolist()) <= {b"python", b"pytest", b"python3"} and (rows["duration_ns"] > 0).all()
    assert all(f"@{place}"[:20].encode() in name for name in rows["limiter_id"].tolist())


@pytest.mark.parametrize("protocol", [2, 3])
def test_pipelines_transactions_and_long_requests(rig: Rig, place: Path, protocol: int) -> None:
    client = redis.Redis(unix_socket_path=str(place), protocol=protocol)
    script = client.register_script(GCRA_LIKE)
    client.flushall()
    key = f"rate:{protocol}"
    short = "redis_unix" not in rig.wire._family.programs
    log: list[int] = []

    def asks() -> None:
        log.append(script(keys=[key], args=[7, 7, 60, 1])[0])
        pipeline = client.pipeline(transaction=False)
        for _ in range(3):
            pipeline.evalsha(script.sha, 1, key, 7, 7, 60, 1), pipeline.set("x", "y" * (30 if short else 3000))
        log.extend(reply[0] for reply in pipeline.execute()[::2])
        both = client.pipeline(transaction=True)
        both.set("x", "y" * 20000), both.evalsha(script.sha, 1, key, 7, 7, 60, 1)
        both.execute()  # the connection is followed as a whole from here on
        log.append(1)
        time.sleep(0.1)
        log.extend(client.evalsha(script.sha, 1, key, 7, 7, 60, 1)[0] for _ in range(5))

    rows = rig.during(asks)
    counts = reported(rows)
    name = "github.com/go-redis/redis_rate"
    lost = len(log) - counts.total()
    assert lost == 1, (
        counts
    )  # the one of the transaction, behind a text that lies in pages: its place is lost, and found again
    assert (counts[name, "allowed"], counts[name, "refused"]) == (log.count(1) - 1, log.count(0))


def test_go_redis_with_redis_rate(rig: Rig, place: Path) -> None:
    client = redis.Redis(unix_socket_path=str(place))
    client.flushall()
    log = go_asks(rig, str(place), 101)
    client.flushall()
    assert log.total() == 101 and min(log.values()) > 10


def test_a_program_of_another_language_and_one_that_begins_later(rig: Rig, place: Path) -> None:
    redis.Redis(unix_socket_path=str(place)).flushall()

    def asks() -> None:
        for _ in range(11):
            subprocess.run(
                ["redis-cli", "-s", str(place), "EVAL", BUCKET, "1", "shop", "5"], check=True, stdout=subprocess.DEVNULL
            )

    rows = rig.during(asks)
    assert sorted(count for count in reported(rows).values()) == [5, 6] and set(rows["comm"].tolist()) == {b"redis-cli"}


def test_a_server_after_another_is_called_by_its_own_name(rig: Rig) -> None:
    """Where the address of one that has ended lay, the next one's may come to lie."""
    names = [f"@tickscope-{os.getpid()}-{n:02}" for n in range(20)]

    def asks() -> None:
        for name in names:
            with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
                listening.bind("\0" + name[1:])
                listening.listen()
                client.connect("\0" + name[1:])
                with listening.accept()[0] as server:
                    for _ in range(2):
                        client.sendall(request)
                        assert server.recv(4096) == request
                        server.sendall(b"*4\r\n:1\r\n:4\r\n$2\r\n-1\r\n$1\r\n1\r\n")
                        client.recv(4096)
            time.sleep(0.03)

    words = (b"EVAL", GCRA_LIKE.encode(), b"1", b"rate:x", b"5", b"5", b"60", b"1")
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    rows = rig.during(asks)
    reported = collections.Counter(name.split()[0].partition(b"@")[2].decode() for name in rows["limiter_id"].tolist())
    assert reported == dict.fromkeys(names, 2)


def test_a_name_that_the_kernel_had_forgotten_is_reported_once_it_knows_it(rig: Rig) -> None:
    paths = rig.loaded.families["redis"].maps["redis_paths"]
    number = (4711).to_bytes(8, "little")
    servers, ends = RedisServers(paths), Ends(UNIX + number, 0, bytes(16), 0, 0)
    assert servers(ends) == "unix"
    bpf.update(paths, number, (4).to_bytes(4, "little") + b"/one".ljust(108, b"\0"))
    assert servers(ends) == "/one"
    bpf.delete(paths, number)


def test_nothing_comes_when_it_is_detached(rig: Rig, place: Path) -> None:
    client = redis.Redis(unix_socket_path=str(place))
    rig.wire.close()
    rig.wire._next_ns = 1 << 62
    rows = rig.during(lambda: [client.eval(BUCKET, 1, "gone", 5) for _ in range(7)] and None)
    assert np.array_equal(rows, rows[:0])
