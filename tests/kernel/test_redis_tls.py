"""Limiters in a real Redis that is asked by TLS: redis-py, limits, redis-cli; the client's end, the server's, and both. Every decision by the program's own log."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import redis

from agent.kernel.load import load, release
from agent.kernel.source import KernelSource
from agent.probes import discover
from agent.probes.beside.redis_tls import RedisTls
from agent.probes.beside.redis_wire import RedisWire
from agent.tables import TABLES
from agent.targets.targets import Targets
from tests.kernel.local_attach import LocalAttacher
from tests.kernel.test_redis_wire import GCRA_LIKE, told
from tests.patience import PATIENCE
from tests.servers.test_redis_streams import Redis

pytest_plugins = ["tests.kernel.tls_fixtures"]
REDIS_RATE = "github.com/go-redis/redis_rate"

#: Decides as often as each line of stdin says, and tells what came of it.
CLIENT = f"""
import json, redis, sys
client = redis.Redis(port=int(sys.argv[1]), ssl=True, ssl_ca_certs=sys.argv[2], ssl_check_hostname=False)
script = client.register_script({GCRA_LIKE!r})
client.ping()
print("ready", flush=True)
for line in sys.stdin:
    key, count = line.split()
    print(json.dumps([script(keys=[key], args=[7, 7, 60, 1])[0] for _ in range(int(count))]), flush=True)
"""
#: The same with asyncio, which does TLS in its own memory.
ASYNC = f"""
import asyncio, json, redis.asyncio, sys
async def main():
    client = redis.asyncio.Redis(port=int(sys.argv[1]), ssl=True, ssl_ca_certs=sys.argv[2], ssl_check_hostname=False)
    script = client.register_script({GCRA_LIKE!r})
    await client.ping()
    print("ready", flush=True)
    for line in sys.stdin:
        key, count = line.split()
        print(json.dumps([(await script(keys=[key], args=[7, 7, 60, 1]))[0] for _ in range(int(count))]), flush=True)
asyncio.run(main())
"""


class TlsRedis(Redis):
    """Listens on ``tls_port``, too."""

    def __init__(self, directory: Path, certs: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.tls_port = probe.getsockname()[1]
        super().__init__(directory, "--tls-port", str(self.tls_port), "--tls-cert-file", str(certs / "cert"), "--tls-key-file", str(certs / "key"),
                         "--tls-ca-cert-file", str(certs / "cert"), "--tls-auth-clients", "no")  # fmt: skip


class TlsRig:
    """What the agent has, with these ports."""

    def __init__(self, *ports: int, servers: tuple[int, ...] = ()) -> None:
        known = discover()
        self.loaded = load([known[name] for name in ("exec", "tcp", "redis", "tls", "redis_tls")])
        for family in self.loaded.families.values():
            assert family.state == "attached", family.reason
        families = self.loaded.families
        self.kernel = KernelSource(self.loaded, interval_ns=200_000_000)
        self.attacher = LocalAttacher()
        self.targets = Targets(self.attacher, self.kernel)
        self.wire = RedisWire(
            families["redis"],
            self.kernel,
            self.attacher,
            mode="on",
            per_s=20_000,
            find_ports=lambda _: frozenset(ports),
        )  # type: ignore[arg-type]
        self.tls = RedisTls(
            families["redis_tls"], families["redis"], self.kernel, self.attacher, self.targets, lambda: servers
        )
        self.sources = [self.kernel, self.targets, self.wire, self.tls]
        self.rows: list[np.ndarray] = []
        self.wire.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self.targets.start()
        self.pump()

    def pump(self) -> None:
        for source in self.sources:
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):  # type: ignore[attr-defined]
                assert batch.table != "loss", batch.rows
                if batch.table == "limiter_decision":
                    self.rows.append(batch.rows)

    def until(self, done: Callable[[], bool], limit_s: float = 20) -> None:
        end = time.monotonic() + limit_s * PATIENCE
        while not done():
            assert time.monotonic() < end, self.tls.state()
            self.pump()
            time.sleep(0.01)

    def reads(self, pid: int) -> None:
        """Waits until that process has its probes."""
        self.until(lambda: any(one.pid == pid and one.links for one in self.tls._users.values()))

    def take(self, count: int) -> np.ndarray:
        """Rows, once there are so many, and what else comes within a moment."""
        end = time.monotonic() + 5 * PATIENCE
        while sum(map(len, self.rows)) < count and time.monotonic() < end:
            self.pump()
            time.sleep(0.01)
        settled = time.monotonic() + 0.3
        while time.monotonic() < settled:
            self.pump()
            time.sleep(0.01)
        rows, self.rows = np.concatenate([TABLES["limiter_decision"].empty(0), *self.rows]), []
        return rows

    def close(self) -> None:
        for source in reversed(self.sources):
            source.close()  # type: ignore[attr-defined]
        self.attacher.close()
        release(self.loaded)


class Program:
    """A client that decides when it is told to."""

    def __init__(self, text: str, server: TlsRedis, certs: Path) -> None:
        argv = [sys.executable, "-c", text, str(server.tls_port), str(certs / "cert")]
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout and self.child.stdout.readline() == "ready\n"

    def decide(self, key: str, count: int) -> list[int]:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(f"{key} {count}\n")
        self.child.stdin.flush()
        log: list[int] = json.loads(self.child.stdout.readline())
        return log

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


@contextlib.contextmanager
def running(text: str, server: TlsRedis, certs: Path) -> Iterator[Program]:
    one = Program(text, server, certs)
    yield one
    one.end()


@contextlib.contextmanager
def rigged(*ports: int, servers: tuple[int, ...] = ()) -> Iterator[TlsRig]:
    one = TlsRig(*ports, servers=servers)
    yield one
    one.close()


@contextlib.contextmanager
def serving(directory: Path, certs: Path) -> Iterator[TlsRedis]:
    one = TlsRedis(directory, certs)
    yield one
    one.stop()


def counted(log: list[int]) -> collections.Counter[tuple[str, str]]:
    return collections.Counter((REDIS_RATE, ("refused", "allowed")[one]) for one in log)


def test_a_client_before_the_agent_and_one_after_it(tmp_path: Path, certs: Path) -> None:
    with (
        serving(tmp_path, certs) as server,
        running(CLIENT, server, certs) as before,
        contextlib.ExitStack() as later,
    ):
        before.decide("rate:unseen", 1)
        rig = later.enter_context(rigged(server.tls_port))
        rig.until(lambda: bool(before.decide("rate:unseen", 1)) and any(one.links for one in rig.tls._users.values()))
        rig.take(0)  # one that nobody uses is seen with its first request
        log = before.decide("rate:a", 13)
        rows = rig.take(13)
        assert told(rows) == counted(log) and log.count(1) == 7
        assert set(rows["pid"].tolist()) == {before.child.pid} and (rows["duration_ns"] > 0).all()
        assert rows["limiter_id"][0] == f"redis_rate@127.0.0.1:{server.tls_port} rate:".encode()
        with running(CLIENT, server, certs) as after:
            rig.reads(after.child.pid)
            log = after.decide("rate:b", 11)
            rows = rig.take(11)
            assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {after.child.pid}
            assert rows["remaining"].tolist() == [6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0]
        rig.until(lambda: after.child.pid not in rig.tls._users)


def test_the_servers_end(tmp_path: Path, certs: Path) -> None:
    with (
        serving(tmp_path, certs) as server,
        rigged(1, servers=(server.process.pid,)) as rig,
        running(ASYNC, server, certs) as client,
    ):
        rig.reads(server.process.pid)
        log = client.decide("rate:a", 17)
        rows = rig.take(17)
        assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {server.process.pid}
        subprocess.run(["redis-cli", "--tls", "--cacert", certs / "cert", "-p", str(server.tls_port), "EVAL", GCRA_LIKE, "1", "rate:cli", "7", "7", "60", "1"],
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        assert told(rig.take(1)) == counted([1])


def test_both_ends_are_told_once_by_the_client(tmp_path: Path, certs: Path) -> None:
    with (
        serving(tmp_path, certs) as server,
        rigged(server.tls_port, servers=(server.process.pid,)) as rig,
        running(CLIENT, server, certs) as client,
    ):
        rig.reads(server.process.pid)
        rig.reads(client.child.pid)
        log = client.decide("rate:a", 19)
        rows = rig.take(19)
        assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {client.child.pid}


def test_what_is_asked_by_asyncio_has_no_place(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(ASYNC, server, certs) as client:  # fmt: skip
        rig.reads(client.child.pid)
        log = client.decide("rate:a", 13)
        rows = rig.take(13)
        assert told(rows) == counted(log) and set(rows["limiter_id"].tolist()) == {b"redis_rate@? rate:"}


def test_others_pay_nothing_and_nothing_comes_when_it_is_detached(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(CLIENT, server, certs) as client:  # fmt: skip
        rig.reads(client.child.pid)
        rig.tls.close()
        client.decide("rate:a", 5)
        redis.Redis(port=server.tls_port, ssl=True, ssl_ca_certs=str(certs / "cert"), ssl_check_hostname=False).ping()
        assert len(rig.take(0)) == 0 and not rig.tls._connections.read()[0].size
