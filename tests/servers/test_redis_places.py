"""Queues of a real Redis Cluster, and of a service of a real Sentinel: the same ones after a fail-over."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.resp import RedisUrl
from agent.errors import AgentError
from agent.queues import redis_places
from agent.queues.brokers.redis import BROKER
from agent.queues.redis_places import shards, slot
from tests.patience import listening, until
from tests.ports import free_port
from tests.servers.polled import poll, until_rows
from tests.servers.process import ServerProcess
from tests.servers.test_redis_lag import fill
from tests.servers.test_redis_rights import LEAST, failure
from tests.servers.test_redis_streams import Redis

NAMES = [f"orders{i}" for i in range(7)]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_places, "ASK_NS", 200_000_000)
    monkeypatch.setattr(redis_places, "_ASK_S", 5)


def cli(port: int, *words: str) -> str:
    return subprocess.run(
        ["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=True, timeout=60
    ).stdout


DISKLESS = ("--repl-diskless-sync-delay", "0")


def options() -> tuple[str, ...]:
    """Of a server of a cluster. The bus's usual port, 10,000 above the server's, may be none."""
    port = str(free_port())
    return "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", port, *DISKLESS


def connections(port: int) -> int:
    """That a Sentinel has accepted so far."""
    (line,) = [one for one in cli(port, "-a", "s3cr3t", "info", "stats").splitlines() if "total_connections_rec" in one]
    return int(line.split(":")[1])


def offset(server: Redis, name: str) -> int:
    text: Any = server.do("INFO", "replication")
    return int(dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line).get(name, -1))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Redis]]:
    """Three primaries and three replicas."""
    servers = []
    for i in range(6):
        (tmp_path / str(i)).mkdir()
        servers.append(Redis(tmp_path / str(i), *options()))
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    made = subprocess.run(
        ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "All 16384 slots covered" in made.stdout, made.stdout
    until(lambda: all("cluster_state:ok" in cli(server.port, "cluster", "info") for server in servers))
    until(lambda: sum("master_link_status:up" in cli(server.port, "info", "replication") for server in servers) == 3)
    yield servers
    for server in servers:
        server.end()


def of_groups(rows: Any) -> dict[bytes, tuple[bytes, int, bytes]]:
    """(cluster, lag, status) by stream."""
    return {
        row["destination"]: (row["cluster"], int(row["lag_messages"]), row["status"])
        for row in rows
        if row["consumer_group"] == b"g"
    }


def _replicated(primary: Redis) -> bool:
    """Whether its replica has all that it has."""
    found = cli(primary.port, "info", "replication")
    offset = re.search(r"master_repl_offset:(\d+)", found)
    return offset is not None and f"state=online,offset={offset[1]}," in found


@pytest.mark.parametrize("query", ["", "?streams=" + ",".join(NAMES)])
def test_queues_of_a_cluster_keep_their_identity_over_a_fail_over(cluster: list[Redis], query: str) -> None:
    port = cluster[0].port
    for i, name in enumerate(NAMES):
        for n in range(1, 12 + i):
            cli(port, "-c", "XADD", name, f"{n}-0", "k", "v")
        cli(port, "-c", "XGROUP", "CREATE", name, "g", "5-0")
    for server in cluster:
        server.do("ACL", "SETUSER", "mon", "on", ">x", "~*", "-@all", *LEAST.split(), "+cluster|slots")
    url = f"redis+cluster://mon:x@127.0.0.1:{cluster[3].port},127.0.0.1:{port}{query}"
    (queue,) = BROKER.sources([url])
    where = f"127.0.0.1:{cluster[3].port}".encode()
    truth = {name.encode(): (where, 6 + i, b"ok") for i, name in enumerate(NAMES)}
    rows = until_rows(queue, lambda rows: len(of_groups(rows)) == 7)
    assert of_groups(rows) == truth
    assert len({row["peer"].tobytes() for row in rows}) == 3
    killed = next(server for server in cluster if "role:master" in cli(server.port, "info", "replication"))
    until(lambda: _replicated(killed))  # else data are lost
    its = {row["destination"] for row in rows if row["peer"].tobytes()[16:] == killed.port.to_bytes(2, "little")}
    assert its
    killed.end()
    down = of_groups(poll(queue))
    assert {name for name, (_, _, status) in down.items() if status == b"down"} == its
    rows = until_rows(queue, lambda rows: b"down" not in rows["status"].tolist())
    assert of_groups(rows) == truth
    assert np.count_nonzero(rows["consumer_group"] == b"g") == 7
    queue.close()


def due(queue: Any) -> dict[bytes, int | None]:
    """When each key expires, ms since 1970, as the agent has it after a poll; None: not known, or not this host's."""
    queue.poll()
    found = [one for one in queue.timers() if one["timers"]]
    at_ns = {one["object"]: one["due_wall_ns"] if one["clock"] == "wall" else None for one in found}
    return {key: None if at is None else at // 10**6 for key, at in at_ns.items()}


def test_keys_with_an_expiry_of_a_cluster_are_those_of_all_its_primaries(cluster: list[Redis]) -> None:
    port = cluster[0].port
    keys = [*(f"lock:{i}" for i in range(23)), "leader"]
    for i, key in enumerate(keys):
        cli(port, "-c", "SET", key, "x", "PX", str(3_600_000 + i))
    for i in range(7):
        cli(port, "-c", "SET", f"lock:for ever{i}", "x")
    truth: dict[bytes, int | None] = {key.encode(): int(cli(port, "-c", "PEXPIRETIME", key)) for key in keys}
    (queue,) = BROKER.sources(
        [f"redis+cluster://127.0.0.1:{cluster[3].port},127.0.0.1:{port}?locks=lock:*&leases=leader"]
    )
    assert due(queue) == truth
    killed = next(server for server in cluster if "role:master" in cli(server.port, "info", "replication"))
    until(lambda: _replicated(killed))
    its = {key.encode() for key in keys if "MOVED" not in cli(killed.port, "PEXPIRETIME", key)}
    killed.end()
    down = due(queue)
    assert down.pop(b"") is None  # those of the killed one
    assert down == {key: at for key, at in truth.items() if key not in its}
    until(lambda: due(queue) == truth)
    # A key on its way: neither primary has a time for it.
    key = keys[5]
    found = [line.split() for line in cli(cluster[5].port, "CLUSTER", "NODES").splitlines()]
    primaries = [int(one[1].split("@")[0].split(":")[1]) for one in found if one[2] in ("master", "myself,master")]
    here = next(one for one in primaries if "MOVED" not in cli(one, "PEXPIRETIME", key))
    there = next(one for one in primaries if one != here)
    ids = {one: cli(one, "CLUSTER", "MYID").strip() for one in (here, there)}
    number = str(slot(key.encode()))
    cli(there, "CLUSTER", "SETSLOT", number, "IMPORTING", ids[here])
    cli(here, "CLUSTER", "SETSLOT", number, "MIGRATING", ids[there])
    cli(here, "MIGRATE", "127.0.0.1", str(there), key, "0", "5000")
    assert due(queue) == {**{one: at for one, at in truth.items() if one != key.encode()}, b"": None}
    for one in primaries:
        cli(one, "CLUSTER", "SETSLOT", number, "NODE", ids[there])
    truth[key.encode()] = int(cli(there, "PEXPIRETIME", key))  # MIGRATE sends how long it has left
    until(lambda: due(queue) == truth)
    queue.close()


def test_a_server_of_a_cluster_that_is_queried_alone_names_the_setting(cluster: list[Redis]) -> None:
    port = cluster[0].port
    foreign = next(name for name in NAMES if "MOVED" in cli(port, "XLEN", name))
    (queue,) = BROKER.sources([f"redis://127.0.0.1:{port}/0?streams={foreign}"])
    assert any(b"redis+cluster://" in row["reason"] for row in poll(queue))


def test_a_stream_that_is_being_moved_to_another_server_is_unknown_meanwhile(cluster: list[Redis]) -> None:
    primaries = [server.port for server in cluster if "role:master" in cli(server.port, "info", "replication")]
    here = next(port for port in primaries if "MOVED" not in cli(port, "XADD", "orders", "1-0", "k", "v"))
    there = next(port for port in primaries if port != here)
    cli(here, "XGROUP", "CREATE", "orders", "g", "0")
    (queue,) = BROKER.sources([f"redis+cluster://127.0.0.1:{here}?streams=orders"])
    assert of_groups(poll(queue))[b"orders"][1:] == (1, b"ok")
    number, ids = str(slot(b"orders")), {p: cli(p, "CLUSTER", "MYID").strip() for p in (here, there)}
    cli(there, "CLUSTER", "SETSLOT", number, "IMPORTING", ids[here])
    cli(here, "CLUSTER", "SETSLOT", number, "MIGRATING", ids[there])
    cli(here, "MIGRATE", "127.0.0.1", str(there), "orders", "0", "5000")
    (row,) = (row for row in poll(queue) if row["consumer_group"] == b"g")
    assert (row["status"], row["reason"]) == (b"unknown", f"it is being moved to 127.0.0.1:{there}".encode())
    for port in primaries:
        cli(port, "CLUSTER", "SETSLOT", number, "NODE", ids[there])
    until(lambda: of_groups(poll(queue)).get(b"orders", ())[1:] == (1, b"ok"))
    queue.close()


class Sentinel(ServerProcess):
    """Of the service shop. lines: of its configuration."""

    def __init__(self, directory: Path, primary: int, *lines: str, tls: bool = False) -> None:
        self.directory, self.port = directory, free_port()
        config = directory / "sentinel.conf"
        config.write_text("\n".join([f"sentinel monitor shop 127.0.0.1 {primary} 1", *lines, ""]))
        ports = ("--port", "0", "--tls-port") if tls else ("--port",)
        self.run(["redis-server", str(config), "--sentinel", "--bind", "127.0.0.1", *ports, str(self.port)])
        listening(self.port, process=self.process)


def begin_sentinel(directory: Path, primary: Redis, timeout_ms: int = 5000) -> Sentinel:
    """With a password. timeout_ms: as long it leaves a replica alone that has its data by another address than the
    primary's.
    """
    times = ("down-after-milliseconds shop 1000", f"failover-timeout shop {timeout_ms}")
    return Sentinel(directory, primary.port, "requirepass s3cr3t", *(f"sentinel {one}" for one in times))


def test_the_primary_of_a_sentinel_service_keeps_its_identity(tmp_path: Path) -> None:
    for name in "abs":
        (tmp_path / name).mkdir()
    with ExitStack() as ends:
        primary = ends.enter_context(Redis(tmp_path / "a", *DISKLESS))
        replica = ends.enter_context(Redis(tmp_path / "b"))
        replica.do("REPLICAOF", "127.0.0.1", primary.port)
        fill(primary, 41, stream="jobs")
        primary.do("XGROUP", "CREATE", "jobs", "g", "7-0")
        for i in range(7):
            primary.do("SET", f"lock:{i}", "x", "PX", 3_600_000 + i)
        truth: Any = {f"lock:{i}".encode(): primary.do("PEXPIRETIME", f"lock:{i}") for i in range(7)}
        received = "slave_read_repl_offset"  # of a replica; until then a killed primary takes entries with it
        until(lambda: 0 < offset(primary, "master_repl_offset") <= offset(replica, received))
        port = ends.enter_context(begin_sentinel(tmp_path / "s", primary)).port
        where = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/shop/0?sentinel_password=s3cr3t"
        (queue,) = BROKER.sources([f"{where}&locks=lock:*&streams=jobs"])
        rows = until_rows(queue, lambda rows: b"down" not in rows["status"].tolist())
        name = b"shop@127.0.0.1:1"
        assert of_groups(rows) == {b"jobs": (name, 34, b"ok")}
        assert due(queue) == truth
        until(lambda: "slaves=1" in cli(port, "-a", "s3cr3t", "info", "sentinel"))
        primary.end()
        assert of_groups(poll(queue)) == {b"jobs": (name, -(2**63), b"down")}
        assert queue.timers() == []  # those of before stay
        rows = until_rows(queue, lambda rows: b"down" not in rows["status"].tolist())
        assert of_groups(rows) == {b"jobs": (name, 34, b"ok")}
        assert rows["peer"][0].tobytes()[16:] == replica.port.to_bytes(2, "little")
        assert due(queue) == truth
        (unknown,) = BROKER.sources([f"redis+sentinel://127.0.0.1:{port}/stock?sentinel_password=s3cr3t"])
        (row,) = poll(unknown)
        assert (row["status"], row["destination"]) == (b"down", b"")
        assert b"knows no service stock" in row["reason"]
        (refused,) = BROKER.sources([f"redis+sentinel://127.0.0.1:{port}/shop?sentinel_password=s3cr3t9"])
        before = connections(port)
        row = [poll(refused)[0] for _ in range(5)][-1]
        assert connections(port) - before == 2  # a refused login is not repeated at once; one is of this function
        assert (row["status"], failure(row)) == (b"down", "login")
        assert b"WRONGPASS" in row["reason"]
        assert b"s3cr3t" not in row["reason"]


def test_urls_of_several_servers() -> None:
    url = RedisUrl.parse("rediss+sentinel://u:p%2C@a:1,b,[::1]:3/shop/2?streams=x")
    assert (url.addresses, url.service, url.db, url.tls) == ((("a", 1), ("b", 26379), ("::1", 3)), "shop", 2, True)
    assert (url.server, url.user, url.password, url.streams) == ("shop@a:1", "u", "p,", ("x",))
    one = url.at("c", 7)
    assert (one.server, one.addresses, one.db, one.password) == ("c:7", (), 2, "p,")
    cluster = RedisUrl.parse("redis+cluster://a,b:7/")
    assert (cluster.addresses, cluster.server) == ((("a", 6379), ("b", 7)), "a:6379")
    for wrong in (
        "redis+sentinel://a",
        "redis://a?sentinel_password=x",
        "redis+nothing://a",
        "unix+cluster:///a",
        "redis+cluster://a:x",
    ):
        with pytest.raises(AgentError):
            RedisUrl.parse(wrong)


def test_slots_are_those_of_the_server(tmp_path: Path) -> None:
    with Redis(tmp_path, *options()) as server:
        for key in ("foo", "", "{user1000}.following", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "{", "a}b{c"):
            assert slot(key.encode()) == server.do("CLUSTER", "KEYSLOT", key), key


@pytest.mark.parametrize(
    "reply", [7, [7], [[0, 1]], [[0, 20000, [b"a", 1]]], [[-1, 3, [b"a", 1]]], [[3, 1, [b"a", 1]]], [[0, 1, [1, 2]]]]
)
def test_what_are_no_slots_is_refused(reply: Any) -> None:
    with pytest.raises((AttributeError, IndexError, TypeError, ValueError)):
        shards(reply, "a")
    assert shards([[0, 5, [b"", 7]], [9, 9, [b"?", 7], [b"x", 1]]], "h") == {((0, 5), (9, 9)): ("h", 7)}
