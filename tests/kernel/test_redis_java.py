"""Limiters in a real Redis that Java asks: jedis, lettuce, Bucket4j, Redisson, and the script of Spring Cloud Gateway's
jar. Every decision by the program's own log.
"""

from __future__ import annotations

import collections
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.go_fixture import CACHE
from tests.kernel.test_redis_wire import GCRA_LIKE, Rig, reported
from tests.servers.test_redis_streams import Redis


def built_by_maven(name: str, program: str) -> Path:
    """Where the classes and the libraries are; built once for each content of the sources."""
    for needed in ("mvn", "javac"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed}: Java's libraries come by Maven")
    sources = Path(__file__).parent / name
    digest = hashlib.sha256(repr([(p.name, p.read_text()) for p in sorted(sources.iterdir())]).encode()).hexdigest()
    done = CACHE / f"{name}-{digest[:16]}"
    if done.exists():
        return done
    path = done.with_suffix(f".{os.getpid()}")
    shutil.copytree(sources, path)
    fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={path}"]
    got = subprocess.run(fetch, cwd=path, capture_output=True, text=True, check=False)
    if got.returncode:
        shutil.rmtree(path)
        pytest.skip(f"the libraries cannot be had: {got.stdout[-300:]}")
    subprocess.run(["javac", "-d", path, "-cp", f"{path}/*", path / program], check=True)
    path.rename(done)
    return done


@pytest.fixture(scope="module")
def built() -> Path:
    return built_by_maven("javaredis", "Asks.java")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[tuple[Rig, Redis]]:
    server = Redis(tmp_path)
    one = Rig("on", {server.port})
    yield one, server
    one.close()
    server.end()


def test_each_client_and_library(built: Path, rig: tuple[Rig, Redis]) -> None:
    wire, server = rig
    argv = [
        "java",
        "-Xshare:auto",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{built}:{built}/*",
        "Asks",
        str(server.port),
        GCRA_LIKE,
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        assert any(line == "ready\n" for line in program.stdout)
        for kind, library, count in (
            ("jedis", "github.com/go-redis/redis_rate", 13),
            ("lettuce", "github.com/go-redis/redis_rate", 17),
            ("gateway", "spring-cloud-gateway", 19),
            ("redisson", "org.redisson", 13),
            ("bucket4j", "io.github.bucket4j", 11),
        ):
            output: list[str] = []

            def asks(kind: str = kind, count: int = count, output: list[str] = output) -> None:
                assert program.stdin is not None and program.stdout is not None
                program.stdin.write(f"{kind} {count}\n")
                program.stdin.flush()
                output.append(program.stdout.readline().strip())

            rows = wire.during(asks)
            log = collections.Counter((library, ("refused", "allowed")[int(digit)]) for digit in output[0])
            assert log.total() == count and log[library, "refused"] > 0
            if kind == "bucket4j":  # it decides itself, and writes what it let through
                del log[library, "refused"]
            assert reported(rows) == log, kind
            assert set(rows["pid"].tolist()) == {program.pid}
        program.stdin.close()
