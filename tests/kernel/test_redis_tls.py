"""Limiters in a real Redis that is asked by TLS: redis-py, limits, redis-cli; the client's end, the server's, and both.
Every decision by the program's own log.
"""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from agent.kernel.helper import serve
from agent.kernel.helper_client import Helper, start
from agent.kernel.load import load, release
from agent.kernel.source import KernelSource
from agent.posix.child import fork
from agent.probes import discover
from agent.probes.beside.redis_tls import RedisTls
from agent.probes.beside.redis_wire import RedisWire
from agent.tables import TABLES
from agent.targets.attacher import Attacher
from agent.targets.targets import Targets
from tests.kernel.local_attach import LocalAttacher
from tests.kernel.test_redis_wire import BUCKET, GCRA_LIKE, told
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
        super().__init__(
            directory,
            "--tls-port",
            str(self.tls_port),
            "--tls-cert-file",
            str(certs / "cert"),
            "--tls-key-file",
            str(certs / "key"),
            "--tls-ca-cert-file",
            str(certs / "cert"),
            "--tls-auth-clients",
            "no",
        )


class TlsRig:
    """What the agent has, with these ports."""

    def __init__(
        self, *ports: int, servers: tuple[int, ...] = (), per_s: int = 20_000, helper: Helper | None = None
    ) -> None:
        known = discover()
        self.loaded = load([known[name] for name in ("exec", "tcp", "redis", "tls", "redis_tls")])
        for family in self.loaded.families.values():
            assert family.state == "attached", family.reason
        families = self.loaded.families
        self.kernel = KernelSource(self.loaded, interval_ns=200_000_000)
        self.attacher = LocalAttacher()
        self.helper: Attacher = helper or self.attacher
        self.targets = Targets(self.attacher, self.kernel)
        self.wire = RedisWire(
            families["redis"],
            self.kernel,
            self.attacher,
            mode="on",
            per_s=per_s,
            find_ports=lambda _: frozenset(ports),
        )  # type: ignore[arg-type]
        self.tls = RedisTls(
            families["redis_tls"], families["redis"], self.kernel, self.helper, self.targets, lambda: servers
        )
        self.sources = [self.kernel, self.targets, self.wire, self.tls]
        self.rows: list[np.ndarray] = []
        self.wire.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self.targets.start()
        self.pump()

    def pump(self) -> None:
        self.helper.pump()
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
    try:
        yield one
    finally:
        one.end()


@contextlib.contextmanager
def rigged(
    *ports: int, servers: tuple[int, ...] = (), per_s: int = 20_000, helper: Helper | None = None
) -> Iterator[TlsRig]:
    one = TlsRig(*ports, servers=servers, per_s=per_s, helper=helper)
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def serving(directory: Path, certs: Path) -> Iterator[TlsRedis]:
    one = TlsRedis(directory, certs)
    try:
        yield one
    finally:
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
        assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {client.child.pid}
        subprocess.run(
            [
                "redis-cli",
                "--tls",
                "--cacert",
                certs / "cert",
                "-p",
                str(server.tls_port),
                "EVAL",
                GCRA_LIKE,
                "1",
                "rate:cli",
                "7",
                "7",
                "60",
                "1",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        assert told(rig.take(1)) == counted([1])


def test_it_is_read_with_what_the_helper_may_do(tmp_path: Path, certs: Path) -> None:
    with (
        contextlib.closing(start(fork("helper", serve), 65534, 65534)) as confined,
        serving(tmp_path, certs) as server,
        rigged(server.tls_port, helper=confined) as rig,
        running(CLIENT, server, certs) as client,
    ):
        confined.restrict()
        rig.reads(client.child.pid)
        log = client.decide("rate:a", 13)
        assert told(rig.take(13)) == counted(log)


def test_both_ends_are_told_once_and_a_client_over_loopback_is_left_to_the_server(tmp_path: Path, certs: Path) -> None:
    with (
        serving(tmp_path, certs) as server,
        rigged(server.tls_port, servers=(server.process.pid,)) as rig,
        running(CLIENT, server, certs) as client,
        running(CLIENT, server, certs) as other,
    ):
        rig.tls._clients.next_ns = 1 << 62
        rig.reads(server.process.pid)
        rig.tls._add(client.child.pid, server=False)
        rig.reads(client.child.pid)
        log = client.decide("rate:a", 19)
        rows = rig.take(19)
        assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {client.child.pid}
        rig.tls._clients.next_ns = 0
        rig.until(lambda: client.child.pid not in rig.tls._users)
        assert rig.tls.state()["left_to_servers"] == 2
        for one, key in ((client, "rate:a"), (other, "rate:b"), (client, "rate:c")):
            log = one.decide(key, 11)
            rows = rig.take(11)
            assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {one.child.pid}
        with running(CLIENT, server, certs) as late:
            log = late.decide("rate:d", 13)
            rows = rig.take(13)
            assert told(rows) == counted(log) and set(rows["pid"].tolist()) == {late.child.pid}
            assert set(rig.tls._users) == {server.process.pid}  # nobody else pays


def test_a_client_is_not_left_to_a_server_that_is_not_read(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port, servers=(server.process.pid,)) as rig:
        rig.reads(server.process.pid)
        with running(CLIENT, server, certs) as client:
            client.decide("rate:a", 1)
            rig.until(lambda: rig.tls.state()["left_to_servers"] == 1)
            assert client.child.pid not in rig.tls._users
            rig.take(0)
            rig.tls._drop([server.process.pid])
            rig.tls._find_servers = lambda: ()
            rig.reads(client.child.pid)
            log = client.decide("rate:b", 11)
            assert told(rig.take(11)) == counted(log)


def test_what_is_asked_by_asyncio_has_no_place(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(ASYNC, server, certs) as client:
        rig.reads(client.child.pid)
        log = client.decide("rate:a", 13)
        rows = rig.take(13)
        assert told(rows) == counted(log) and set(rows["limiter_id"].tolist()) == {b"redis_rate@? rate:"}


def test_others_pay_nothing_and_nothing_comes_when_it_is_detached(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(CLIENT, server, certs) as client:
        rig.reads(client.child.pid)
        rig.tls.close()
        client.decide("rate:a", 5)
        redis.Redis(port=server.tls_port, ssl=True, ssl_ca_certs=str(certs / "cert"), ssl_check_hostname=False).ping()
        assert len(rig.take(0)) == 0 and not rig.tls._connections.read()[0].size


#: Talks TLS with itself, in its own memory: pipelines of a limiter's command, garbage, long texts, and SSL objects
#: without end. argv: a Redis port.
HOSTILE = r"""
import os, socket, ssl, sys, time
certs = sys.argv[2]
near, far = ssl.MemoryBIO(), ssl.MemoryBIO()
cc = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); cc.check_hostname = False; cc.verify_mode = ssl.CERT_NONE
sc = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); sc.load_cert_chain(certs + "/cert", certs + "/key")
os.setuid(65534)
plain = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client, server = cc.wrap_bio(near, far), sc.wrap_bio(far, near, server_side=True)
for end in (client, server) * 4:
    try: end.do_handshake()
    except ssl.SSLWantReadError: pass
print("ready", flush=True)
eval_ = b"*3\r\n$4\r\nEVAL\r\n$5\r\nrate:\r\n$1\r\n0\r\n"
texts = (eval_, eval_ * 400, b"*9\r\n$4\r\nEVAL\r\n$999999999\r\n" + b"y" * 16000, os.urandom(9000), b"*1\r\n$4\r\nEVAL" * 99)
kept, end = [], time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    for text in texts:
        client.write(text)
        far.read()
    time.sleep(0.005)  # a hundred times its share all the same
    if len(kept) < 4096:
        kept.append(cc.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO()))
        try: kept[-1].write(eval_)
        except ssl.SSLError: pass
"""


def test_what_a_user_makes_up_hides_nobodys(tmp_path: Path, certs: Path) -> None:
    (certs / "key").chmod(0o644)
    with (
        serving(tmp_path, certs) as server,
        rigged(server.tls_port, per_s=300) as rig,
        running(CLIENT, server, certs) as client,
    ):
        rig.reads(client.child.pid)
        argv = [sys.executable, "-c", HOSTILE, str(server.tls_port), str(certs), "4"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as hostile:
            assert hostile.stdout and hostile.stdout.readline() == "ready\n"
            rig.reads(hostile.pid)
            log: list[int] = []
            end = time.monotonic() + 2

            def decide() -> None:
                while time.monotonic() < end:
                    log.extend(client.decide(f"rate:{len(log)}", 11))
                    time.sleep(0.05)  # within its own user's share

            thread = threading.Thread(target=decide)
            thread.start()
            rig.until(lambda: not thread.is_alive())
        rows = rig.take(len(log))
        mine = rows[rows["pid"] == client.child.pid]
        assert told(mine) == counted(log) and len(log) >= 11
        assert rig.wire.state()["unanswered"] > 0  # it was read


#: Go's own TLS: no OpenSSL in it.
GO = """package main
import ("bufio"; "crypto/tls"; "fmt"; "os")
func main() {
	c, err := tls.Dial("tcp", "127.0.0.1:"+os.Args[1], &tls.Config{InsecureSkipVerify: true})
	if err != nil { panic(err) }
	answers, in := bufio.NewReader(c), bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		fmt.Fprintf(c, "*5\\r\\n$4\\r\\nEVAL\\r\\n$%d\\r\\n%s\\r\\n$1\\r\\n1\\r\\n$6\\r\\nrate:g\\r\\n$1\\r\\n5\\r\\n", len(os.Args[2]), os.Args[2])
		for i := 0; i < 3; i++ { line, _ := answers.ReadString('\\n'); fmt.Print(line) }
	}
}
"""


@pytest.mark.parametrize("here", [True, False])
def test_gos_own_tls_is_seen_at_the_servers_end_or_told_of(tmp_path: Path, certs: Path, here: bool) -> None:
    (tmp_path / "main.go").write_text(GO)
    subprocess.run(["go", "build", "-o", "goclient", "main.go"], cwd=tmp_path, check=True)
    with serving(tmp_path, certs) as server, rigged(server.tls_port, servers=(server.process.pid,) * here) as rig:
        if here:
            rig.reads(server.process.pid)
        argv = [str(tmp_path / "goclient"), str(server.tls_port), BUCKET]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin and child.stdout and child.stdout.readline() == "ready\n"
            log = []
            for _ in range(7):
                child.stdin.write("\n")
                child.stdin.flush()
                log.append([child.stdout.readline() for _ in range(3)][1].strip())
            if here:
                rows = rig.take(7)
                assert sorted(told(rows).values()) == sorted(collections.Counter(log).values()) == [2, 5]
                assert set(rows["pid"].tolist()) == {child.pid}
                rig.until(lambda: rig.tls.state()["left_to_servers"] == 1)
                assert child.pid not in rig.tls._users
            else:
                rig.until(lambda: any(one.pid == child.pid and one.why for one in rig.tls._users.values()))
                assert f"goclient (pid {child.pid})" in rig.loaded.families["redis_tls"].reason
            child.stdin.close()
