"""Limiters in a real Redis, seen on its connections: redis-py, limits, redis-cli, a module, pipelines, transactions,
RESP3, other network namespaces.
"""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from limits import parse, storage, strategies

from agent.columns import NULL_I64
from agent.common.settings import read
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import load, release
from agent.limiters.redis_settings import RedisLimiterSettings
from agent.limiters.scripted import Limiters
from agent.probes import discover
from agent.queues.settings import QueueSettings
from agent.redis_wire.redis_reader import RedisReader
from agent.redis_wire.redis_source import RedisWire
from agent.service.redis_reported import appliers, state
from agent.tables import TABLES
from tests.cable import Cable
from tests.kernel.go_fixture import Limits, go_binary
from tests.kernel.local_attach import LocalAttacher
from tests.patience import PATIENCE, listening, until
from tests.ports import free_port
from tests.servers.certificates import self_signed
from tests.servers.test_redis_streams import Redis

_RESULTS = TABLES["limiter_decision"].by_name["result"].names
#: A token bucket without refill: as many as the first argument says, then none.
BUCKET = """
local left = tonumber(redis.call('GET', KEYS[1]) or ARGV[1])
if left < 1 then return {0, 0} end
redis.call('SET', KEYS[1], left - 1, 'EX', 100) -- limit
return {1, left - 1}
"""
GCRA_LIKE = (
    "-- emission_interval\nlocal n = redis.call('INCR', KEYS[1]) redis.call('EXPIRE', KEYS[1], ARGV[3]) if n >"
    " tonumber(ARGV[1]) then return {0, 0, '0.5', '1'} end return {1, tonumber(ARGV[1]) - n, '-1', '1'}"
)


#: Counters and sets of times whose limits are in the programs below.
OWN: dict[str, object] = {
    "logins": {"command": "INCR", "key": "login:", "limit": 5},
    "django": {"command": "INCR", "key": ":1:rl:", "limit": 5},
    "throttle": {"command": "SET", "key": ":1:throttle_", "allowed": "1 == 1"},
    "posts": {"command": "ZCARD", "key": "posts:", "allowed": "reply < 5", "limit": 5, "window_s": 60},
    "mails": {"command": "ZCARD", "key": "mails:", "allowed": "reply <= 5", "limit": 5, "window_s": 60},
}


class Rig:
    """The family, attached by itself or when asked."""

    def __init__(
        self, mode: str, ports: set[int], per_s: int = 20_000, own: dict[str, object] | None = None, without: str = ""
    ) -> None:
        known = discover()
        programs = tuple(p for p in known["redis"].programs if p.function != without)  # as on an older kernel
        self.loaded = load([known["tcp"], dataclasses.replace(known["redis"], programs=programs)])
        for family in self.loaded.families.values():
            assert family.state == "attached", family.reason
        self.kernel = KernelSource(self.loaded, interval_ns=200_000_000)
        self.records: list[np.ndarray] = []
        self.kernel.subscribe("redis_pieces", self.records.append)
        self.wire = RedisWire(
            self.loaded.families["redis"],
            self.kernel,
            LocalAttacher(),
            read(
                RedisLimiterSettings,
                {"redis_limiters": mode, "redis_decisions_per_s": per_s, "redis_limiter_scripts": own or {}},
            ),
            find_ports=lambda _: frozenset(ports),
        )  # type: ignore[arg-type]
        self.rows: list[np.ndarray] = []
        self.pump()

    def pump(self) -> None:
        for source in (self.kernel, self.wire):
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                assert batch.table != "loss", batch.rows
                if batch.table == "limiter_decision":
                    self.rows.append(batch.rows)

    def during(self, work: Callable[[], None]) -> np.ndarray:
        """Rows of what is done, on a thread of its own."""
        self.rows.clear()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told to who waits for it
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            self.pump()
            time.sleep(0.005)
        end = time.monotonic() + 0.1 * PATIENCE
        while time.monotonic() < end:
            self.pump()
            time.sleep(0.01)
        assert not failed, failed
        return np.concatenate([TABLES["limiter_decision"].empty(0), *self.rows])

    def close(self) -> None:
        self.wire.close()
        self.kernel.close()
        release(self.loaded)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    directory = tmp_path_factory.mktemp("redis")
    module = directory / "cell.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(module), str(Path(__file__).with_name("cell.c"))], check=True)
    one = Redis(directory, "--loadmodule", str(module))
    yield one
    one.end()


@pytest.fixture(scope="module")
def rig(server: Redis) -> Iterator[Rig]:
    one = Rig("on", {server.port}, own=OWN)
    yield one
    one.close()


def reported(rows: np.ndarray) -> collections.Counter[tuple[str, str]]:
    return collections.Counter(
        (row["library"].decode(), _RESULTS[row["result"]] if row["result"] >= 0 else "?") for row in rows
    )


def test_python_limits_by_its_own_account(rig: Rig, server: Redis) -> None:
    counted: collections.Counter[tuple[str, str]] = collections.Counter()

    def hits() -> None:
        store = storage.RedisStorage(f"redis://127.0.0.1:{server.port}")
        for strategy in (
            strategies.FixedWindowRateLimiter,
            strategies.MovingWindowRateLimiter,
            strategies.SlidingWindowCounterRateLimiter,
        ):
            limiter = strategy(store)
            for _ in range(13):
                allowed = limiter.hit(parse("5/hour"), strategy.__name__, "anna")
                counted["limits", "allowed" if allowed else "refused"] += 1

    rows = rig.during(hits)
    assert reported(rows) == counted and sum(counted.values()) == 39
    assert set(rows["window_ns"].tolist()) == {3600 * 10**9} and (rows["duration_ns"] > 0).all()
    assert set(rows["comm"].tolist()) <= {b"python", b"pytest", b"python3"} and len(set(rows["key"].tolist())) == 3


def go_asks(rig: Rig, address: str, count: int) -> collections.Counter[tuple[str, str]]:
    """What a Go program was answered by redis_rate, which is what was seen."""
    program = Limits.start(go_binary("plain", "libraries"), "redis", count, REDIS_SOCKET=address)
    truth: list[dict[str, object]] = []
    rows = rig.during(lambda: truth.extend(program.go()))
    program.end()
    log = collections.Counter(("github.com/go-redis/redis_rate", str(one["result"])) for one in truth)
    assert reported(rows) == log
    assert rows["remaining"].tolist() == [one["remaining"] for one in truth]
    assert set(rows["comm"].tolist()) == {b"libraries-plain"} and len(set(rows["key"].tolist())) == 3
    return log


def test_go_redis_with_redis_rate(rig: Rig, server: Redis) -> None:
    redis.Redis(port=server.port).flushall()
    log = go_asks(rig, f"127.0.0.1:{server.port}", 103)
    assert log.total() == 103 and min(log.values()) > 10


@pytest.mark.parametrize("protocol", [2, 3])
def test_scripts_pipelined_behind_others_and_in_a_transaction(rig: Rig, server: Redis, protocol: int) -> None:
    client = redis.Redis(port=server.port, protocol=protocol)
    script = client.register_script(GCRA_LIKE)
    name = f"rate:{protocol}"

    def asks() -> None:
        script(keys=[name], args=[7, 7, 60, 1])
        client.evalsha(script.sha, 1, name, 7, 7, 60, 1)
        pipeline = client.pipeline(transaction=False)
        for _ in range(3):
            pipeline.get("x"), pipeline.evalsha(script.sha, 1, name, 7, 7, 60, 1)
        time.sleep(1.1)  # a sample of each connection a second
        pipeline.execute()
        time.sleep(0.2)
        for _ in range(2):
            pipeline.get("x"), pipeline.evalsha(script.sha, 1, name, 7, 7, 60, 1)
        pipeline.execute()
        both = client.pipeline(transaction=True)
        (
            both.set("x", "y" * 3000),
            both.evalsha(script.sha, 1, name, 7, 7, 60, 1),
            both.evalsha(script.sha, 1, name, 7, 7, 60, 1),
        )
        both.execute()

    rows = rig.during(asks)
    assert reported(rows) == {
        ("github.com/go-redis/redis_rate", "allowed"): 7,
        ("github.com/go-redis/redis_rate", "refused"): 2,
    }
    assert set(rows["limit_per_s"].round(4).tolist()) == {round(7 / 60, 4)} and len(set(rows["key"].tolist())) == 1


def test_a_script_of_ones_own_by_redis_cli_and_cl_throttle(rig: Rig, server: Redis) -> None:
    def asks() -> None:
        cli = ["redis-cli", "-p", str(server.port)]
        for _ in range(5):
            subprocess.run([*cli, "-3", "EVAL", BUCKET, "1", "shop", "3"], check=True, stdout=subprocess.DEVNULL)
        for _ in range(7):
            subprocess.run([*cli, "CL.THROTTLE", "u", "3", "30", "60"], check=True, stdout=subprocess.DEVNULL)

    rows = rig.during(asks)
    counts = reported(rows)
    assert counts["redis-cell", "allowed"] == 4 and counts["redis-cell", "refused"] == 3
    own = [key for key in counts if key[0].startswith("redis script ")]
    assert sorted((result, counts[name, result]) for name, result in own) == [("allowed", 3), ("refused", 2)]
    assert set(rows["comm"].tolist()) == {b"redis-cli"}


@pytest.mark.parametrize("protocol", [2, 3])
def test_cl_throttle_pipelined_and_in_a_transaction_by_the_programs_own_log(
    rig: Rig, server: Redis, protocol: int
) -> None:
    client = redis.Redis(port=server.port, protocol=protocol)
    replies: list[list[int]] = []

    def asks() -> None:
        replies.append(client.execute_command("CL.THROTTLE", f"u{protocol}", 6, 1, 3600))
        for transaction in (False, True):
            many = client.pipeline(transaction=transaction)
            for _ in range(5):
                many.execute_command("CL.THROTTLE", f"u{protocol}", 6, 1, 3600, 1)
            replies.extend(many.execute())

    rows = rig.during(asks)
    rows = rows[rows["library"] == b"redis-cell"]
    assert [_RESULTS[code] for code in rows["result"]] == [("allowed", "refused")[reply[0]] for reply in replies]
    assert [reply[0] for reply in replies] == [0] * 7 + [1] * 4
    for name, at in (("burst", 1), ("remaining", 2)):
        assert rows[name].tolist() == [reply[at] for reply in replies]
    assert rows["wait_ns"].tolist() == [max(reply[3], 0) * 10**9 for reply in replies] and replies[-1][3] > 0
    assert set(rows["window_ns"].tolist()) == {3600 * 10**9}


def test_declared_counters_and_sets_by_the_programs_own_log(rig: Rig, server: Redis) -> None:
    client = redis.Redis(port=server.port)
    log: collections.Counter[tuple[str, str]] = collections.Counter()

    def login(user: str) -> bool:
        count = client.incr(f"login:{user}")
        if count == 1:
            client.expire(f"login:{user}", 60, nx=True)
        return count <= 5

    def django(user: str) -> bool:
        if client.set(f":1:rl:{user}", 1, ex=65, nx=True):
            return True
        return client.incr(f":1:rl:{user}") <= 5

    def post(user: str) -> bool:
        client.zremrangebyscore(f"posts:{user}", 0, time.time() - 60)
        if client.zcard(f"posts:{user}") >= 5:
            return False
        client.zadd(f"posts:{user}", {str(time.time_ns()): time.time()})
        return True

    def mail(user: str) -> bool:
        with client.pipeline(transaction=True) as many:
            many.zremrangebyscore(f"mails:{user}", 0, time.time() - 60)
            many.zadd(f"mails:{user}", {str(time.time_ns()): time.time()})
            many.zcard(f"mails:{user}")
            many.expire(f"mails:{user}", 60)
            return many.execute()[2] <= 5

    def asks() -> None:
        for name, ask in (("logins", login), ("django", django), ("posts", post), ("mails", mail)):
            for user in ("anna", "bert"):
                for _ in range(7):
                    log[name, "allowed" if ask(user) else "refused"] += 1

    rows = rig.during(asks)
    assert reported(rows) == log and [count for (_, result), count in log.items() if result == "refused"] == [4] * 4
    assert set(rows["window_ns"].tolist()) == {60 * 10**9, 65 * 10**9, NULL_I64}


def test_windows_of_plain_commands_and_functions(rig: Rig, server: Redis) -> None:
    client = redis.Redis(port=server.port)

    def asks() -> None:
        client.function_load(
            "#!lua name=lib\nredis.register_function('throttle', function(keys, args) return redis.call('INCR',"
            " keys[1]) > 2 and 0 or 1 end)",
            replace=True,
        )
        for _ in range(5):
            client.fcall("throttle", 1, "throttle:u")
        for n in range(11):
            if client.incr("hits:u") == 1:
                client.expire("hits:u", 30)
            del n

    rows = rig.during(asks)
    counts = reported(rows)
    assert counts["redis script throttle", "allowed"] == 2 and counts["redis script throttle", "refused"] == 3
    assert counts["redis incrby", "?"] == 11
    windows = rows["window_ns"][rows["library"] == b"redis incrby"]
    assert set(windows.tolist()) == {30 * 10**9}


def test_other_network_namespaces_reported_once_and_whole_at_either_end(rig: Rig, tmp_path: Path) -> None:
    with Cable() as wire:
        with wire.right.entered():
            process = subprocess.Popen(
                [
                    "redis-server",
                    "--port",
                    "6379",
                    "--bind",
                    wire.RIGHT,
                    "--protected-mode",
                    "no",
                    "--save",
                    "",
                    "--dir",
                    str(tmp_path),
                ],
                stdout=subprocess.DEVNULL,
            )
        try:
            rig.wire._bits[6379 >> 6] |= np.uint64(1 << (6379 & 63))
            rig.records.clear()

            def asks() -> None:
                with wire.left.entered():
                    listening(6379, host=wire.RIGHT)
                    client = redis.Redis(wire.RIGHT, 6379)
                    for _ in range(17):
                        client.eval(BUCKET + "-- " + "x" * 6000, 1, "far", 11)

            rows = rig.during(asks)
            assert sorted(result for _, result in reported(rows).elements()) == ["allowed"] * 11 + ["refused"] * 6
            records = np.concatenate(rig.records)
            for inode in (wire.left.inode, wire.right.inode):
                batches = RedisReader(Limiters()).read(records[records["netns"] == inode])
                assert sum(len(batch.rows) for batch in batches) == 17
        finally:
            process.kill()
            process.wait()


def test_auto_attaches_when_a_limiter_is_used_and_the_budget_is_reported(server: Redis) -> None:
    rig = Rig("auto", {server.port}, per_s=200)
    try:
        client = redis.Redis(port=server.port)
        script = client.register_script(GCRA_LIKE)

        def quiet() -> None:
            end = time.monotonic() + 0.6
            while time.monotonic() < end:
                client.set("x", 1)

        assert len(rig.during(quiet)) == 0 and not rig.wire.attached

        def asks() -> None:
            until(
                lambda: rig.wire.attached and not rig.wire._sampling,
                turn=lambda: script(keys=["rate:a"], args=[3, 3, 1, 1]),
                each_s=0.01,
            )
            for _ in range(3000):
                script(keys=["rate:b"], args=[3, 3, 1, 1])

        rows = rig.during(asks)
        state = rig.wire.state()
        assert state["attached"] and 20 <= len(rows) < 3000
        assert state["requests_seen"] >= 3000 > state["requests_read"]  # type: ignore[operator]
        stand_for = (1 / rows["sample_rate"]).sum()
        assert 0 < rows["sample_rate"].min() < 0.9 and 0.8 * 3000 < stand_for <= state["requests_seen"]  # type: ignore[operator]
    finally:
        rig.close()


def test_new_settings_count_at_once_and_it_reports_whether_it_reads_and_why(server: Redis) -> None:
    rig = Rig("auto", {server.port})
    try:
        assert rig.wire.state()["state"] in ("looking", "waiting")
        assert "no limiter in Redis is seen at work" in str(rig.wire.state()["why"])
        rig.wire.use(RedisLimiterSettings(mode="off"))
        rig.pump()
        assert (rig.wire.state()["state"], rig.wire.state()["why"]) == ("off", "redis_limiters is off")
        assert not rig.wire.attached
        client = redis.Redis(port=server.port)
        assert len(rig.during(lambda: [client.eval(BUCKET, 1, "k", 5) for _ in range(5)] and None)) == 0
        appliers([rig.kernel, rig.wire])["redis_limiters"].use(RedisLimiterSettings(mode="on"), QueueSettings())
        rig.pump()
        assert rig.wire.state()["state"] == "on" and rig.wire.attached
        assert len(rig.during(lambda: [client.eval(BUCKET, 1, "k", 5) for _ in range(7)] and None)) == 7
    finally:
        rig.close()
    assert appliers([rig.kernel]) == {}
    assert state([], rig.loaded, "off")["why"].startswith("redis_limiters was off when")


def test_nothing_comes_when_detached(server: Redis) -> None:
    rig = Rig("on", {server.port})
    try:
        rig.wire._detach()
        rig.wire._next_ns = 1 << 62
        client = redis.Redis(port=server.port)
        assert len(rig.during(lambda: [client.eval(BUCKET, 1, "k", 5) for _ in range(5)] and None)) == 0
        assert not rig.records
    finally:
        rig.close()


def test_connections_with_tls_are_reported_of(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    port = free_port()
    options = {
        "port": port,
        "cert-file": certificate,
        "key-file": key,
        "auth-clients": "no",
        "ca-cert-file": certificate,
    }
    server = Redis(tmp_path, *(word for name, value in options.items() for word in (f"--tls-{name}", str(value))))
    rig = Rig("on", {port})
    try:
        client = redis.Redis(port=port, ssl=True, ssl_cert_reqs="none")
        rows = rig.during(lambda: [client.eval(BUCKET, 1, "k", 5) for _ in range(5)] and None)
        assert not len(rows) and rig.wire.state()["segments_in_tls"] >= 5  # type: ignore[operator]
        assert "with TLS" in rig.loaded.families["redis"].reason
    finally:
        rig.close()
        server.end()
