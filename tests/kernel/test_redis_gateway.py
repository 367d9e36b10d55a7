"""Spring Cloud Gateway itself, with RedisRateLimiter before a route: each decision by what it answers."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Iterator

import pytest

from tests.kernel.test_redis_java import built_by_maven
from tests.kernel.test_redis_wire import _RESULTS, Rig
from tests.patience import listening
from tests.ports import free_port
from tests.servers.test_redis_streams import Redis

ROUTE = {
    "id": "shop",
    "uri": "no://op",
    "predicates[0]": "Path=/**",
    "filters[0].name": "RequestRateLimiter",
    "filters[0].args.redis-rate-limiter.replenishRate": 1,
    "filters[0].args.redis-rate-limiter.burstCapacity": 10,
    "filters[0].args.redis-rate-limiter.requestedTokens": 2,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, int, int]]:
    """The rig, the gateway's process and its port."""
    path, directory = built_by_maven("javagateway", "Edge.java"), tmp_path_factory.mktemp("gateway")
    server, port = Redis(directory), free_port()
    rig = Rig("on", {server.port})
    settings = {
        "server.address": "127.0.0.1",
        "server.port": port,
        "spring.data.redis.port": server.port,
        "spring.main.banner-mode": "off",
        **{f"spring.cloud.gateway.server.webflux.routes[0].{name}": value for name, value in ROUTE.items()},
    }
    argv = [
        "java",
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{path}:{path}/*",
        "edge.Edge",
        *(f"--{name}={value}" for name, value in settings.items()),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        listening(port, process=process, log=directory / "log")
        yield rig, process.pid, port
    finally:
        process.kill()
        process.wait()
        rig.close()
        server.end()


def test_each_answer_with_what_remains(gateway: tuple[Rig, int, int]) -> None:
    rig, pid, port = gateway
    output: list[tuple[str, float]] = []

    def asks() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for n in range(23):
            connection.request("GET", f"/cart?user={'anna' if n % 3 else 'bert'}")
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (200, 429), answer.status
            output.append(
                (("refused", "allowed")[answer.status == 200], float(answer.headers["X-RateLimit-Remaining"]))
            )

    rows = rig.during(asks)
    assert [(_RESULTS[row["result"]], float(row["remaining"])) for row in rows] == output
    assert {result for result, _ in output} == {"allowed", "refused"}
    assert set(rows["library"].tolist()) == {b"spring-cloud-gateway"} and set(rows["pid"].tolist()) == {pid}
    assert len(set(rows["key"].tolist())) == 2 and len(set(rows["limiter_id"].tolist())) == 1
    for name, value in (("limit_per_s", 1), ("burst", 10), ("cost", 2), ("window_ns", 10**9)):
        assert set(rows[name].tolist()) == {value}
