"""Envoy's rate limit service, asked by HTTP: each decision that Redis counted, by the service's own answers."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel.go_fixture import go_binary, go_minor
from tests.kernel.test_redis_wire import _RESULTS, Rig
from tests.patience import listening
from tests.ports import free_port
from tests.servers.test_redis_streams import Redis

RULES = """
domain: edge
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 7}}
- {key: path, rate_limit: {unit: second, requests_per_unit: 3}}
- {key: all, rate_limit: {unit: day, requests_per_unit: 1000}}
"""
OWN: dict[str, object] = {
    "edge users": {"command": "INCRBY", "key": "edge_user_", "limit": 7, "remaining": "7 - reply", "cost": "arg.0"},
    "edge paths": {"command": "INCRBY", "key": "edge_path_", "limit": 3, "remaining": "3 - reply", "cost": "arg.0"},
}


class Service:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, *entries: tuple[str, str], hits: int = 1) -> list[dict[str, Any]]:
        """What it says of each entry."""
        descriptors = [{"entries": [{"key": key, "value": value}]} for key, value in entries]
        body = json.dumps({"domain": "edge", "descriptors": descriptors, "hitsAddend": hits}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/json", body)
        answer = connection.getresponse()
        reported = json.load(answer)
        connection.close()
        assert answer.status in (200, 429), reported
        return list(reported["statuses"])


@contextmanager
def serving(directory: Path, redis_port: int, **environ: str) -> Iterator[Service]:
    if go_minor() < 25:
        pytest.skip("needs Go 1.25")
    rules = directory / "ratelimit" / "config"
    rules.mkdir(parents=True, exist_ok=True)
    (rules / "edge.yaml").write_text(RULES)
    port, debug, grpc = free_port(), free_port(), free_port()
    env = {
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis_port}",
        "RUNTIME_ROOT": str(directory),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
        "USE_STATSD": "false",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": str(debug),
        "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": str(grpc),
    }
    program = go_binary("plain", "envoy")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program], env=os.environ | env | environ, stdout=log, stderr=log)
    try:
        listening(port, process=process, log=directory / "log")
        yield Service(process, port)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Redis]]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    one = Rig("on", {server.port}, own=OWN)
    yield one, server
    one.close()
    server.end()


def _decisions(rows: np.ndarray, library: str) -> list[tuple[str, float]]:
    rows = rows[rows["library"] == library.encode()]
    return [(_RESULTS[row["result"]], float(row["remaining"])) for row in rows]


def _answers(statuses: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(("refused", "allowed")[one["code"] == "OK"], float(one.get("limitRemaining", 0))) for one in statuses]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"REDIS_PIPELINE_WINDOW": "150us", "REDIS_PIPELINE_LIMIT": "8", "EXPIRATION_JITTER_MAX_SECONDS": "0"},
        {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true"},
    ],
)
def test_each_decision_by_the_services_own_answers(
    watched: tuple[Rig, Redis], tmp_path: Path, environ: dict[str, str]
) -> None:
    rig, server = watched
    with serving(tmp_path, server.port, **environ) as service:
        users: list[dict[str, Any]] = []
        paths: list[dict[str, Any]] = []

        def asks() -> None:
            if not 1 <= time.time() % 60 < 50:  # at a minute's begin a second's limit looks like a minute's
                time.sleep(11.5)
            who = f"anna{len(environ)}{time.time_ns()}"
            for n in range(13):
                if n % 3:
                    (user,) = service.ask(("user", who))
                else:  # in one pipeline
                    user, path, _ = service.ask(("user", who), ("path", f"/{who}"), ("all", "x"))
                    paths.append(path)
                users.append(user)
            for _ in range(11):
                paths.extend(service.ask(("path", f"/{who}")))

        rows = rig.during(asks)
        assert _decisions(rows, "edge users") == _answers(users) and len(users) == 13
        assert _decisions(rows, "edge paths") == _answers(paths) and len(paths) == 16
        for answered in (users, paths):
            assert {result for result, _ in _answers(answered)} == {"allowed", "refused"}
        others = rows[rows["library"] == b"github.com/envoyproxy/ratelimit"]
        assert len(others) == 5 and len(rows) == 34 and set(others["result"].tolist()) == {-1}
        for library, window_s, limit in ((b"edge users", 60, 7), (b"edge paths", 1, 3)):
            mine = rows[rows["library"] == library]
            assert set(mine["window_ns"].tolist()) == {window_s * 10**9} and len(set(mine["key"].tolist())) == 1
            assert set(mine["limit_per_s"].tolist()) == {limit / window_s}
        assert set(others["window_ns"].tolist()) == {86_400 * 10**9}
        assert set(rows["pid"].tolist()) == {service.process.pid}


def test_what_its_own_cache_refuses_is_not_counted_anywhere(watched: tuple[Rig, Redis], tmp_path: Path) -> None:
    rig, server = watched
    with serving(tmp_path, server.port, LOCAL_CACHE_SIZE_IN_BYTES="1000000") as service:
        output: list[dict[str, Any]] = []

        def asks() -> None:
            who = f"bert{time.time_ns()}"
            for _ in range(13):
                output.extend(service.ask(("user", who), hits=2))

        rows = rig.during(asks)
        reported = _decisions(rows, "edge users")
        assert (
            reported == _answers(output)[: len(reported)] and len(reported) == 4
        )  # 2, 4, 6, and 8, from which on it remembers
        assert [result for result, _ in _answers(output)] == ["allowed"] * 3 + ["refused"] * 10
        assert set(rows["cost"].tolist()) == {2.0}
