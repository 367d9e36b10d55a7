"""What ``redis_tls: true`` costs a Redis that is asked by TLS: ``python -m tests.bench.redis_tls [--pairs N]
[--requests N]``. As root.

redis-benchmark, 50 clients, no pipelining: GET, SET, and a limiter's script. Both ends are here, so both have probes: a
host with one of them pays a part of it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.common import Load, arguments, cpu_s, interleaved, ratio, report, running
from tests.kernel.test_redis_tls import TlsRedis
from tests.kernel.test_redis_wire import GCRA_LIKE

SIDES = {"without": "false", "with": "true"}


def load(server: TlsRedis, cert: Path, requests: int, words: list[str]) -> Load:
    command = [
        "redis-benchmark",
        "--tls",
        "--cacert",
        str(cert),
        "-p",
        str(server.tls_port),
        "-c",
        "50",
        "-n",
        str(requests),
        "--csv",
        *words,
    ]
    before = cpu_s(server.process.pid)
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    rows = [line.replace('"', "").split(",") for line in client.stdout]
    _, status, usage = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    if client.returncode:
        raise SystemExit(f"redis-benchmark ended with {client.returncode}")
    return Load({words[0]: float(rows[-1][-7])}, cpu_s(server.process.pid) - before, usage.ru_utime + usage.ru_stime)


def watched(server: TlsRedis, cert: Path, requests: int, tls: str, commands: list[list[str]]) -> list[Load]:
    config = f"redis_limiters: 'on'\nredis_ports: [{server.tls_port}]\nredis_tls: {tls}\n"
    with running(config=config) as agent:
        loads = [load(server, cert, requests, words) for words in commands]
        said = agent.status()["redis_limiters"]
        if tls == "true" and not (said["decisions"] and server.process.pid in _read(said["tls"]["processes"])):
            raise SystemExit(f"nothing was read, so this counts for nothing: {said}")
    return loads


def _read(processes: list[dict[str, Any]]) -> set[int]:
    return {one["pid"] for one in processes if one["read"]}


def main() -> None:
    given = arguments(__doc__, requests=(100_000, "of each kind in a run"))
    with tempfile.TemporaryDirectory() as here:
        directory = Path(here)
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "1",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-keyout",
                directory / "key",
                "-out",
                directory / "cert",
            ],
            check=True,
            capture_output=True,
        )
        server = TlsRedis(directory, directory)
        try:
            sha = subprocess.run(
                ["redis-cli", "-p", str(server.port), "SCRIPT", "LOAD", GCRA_LIKE],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
            commands = [
                ["GET", "x"],
                ["SET", "x", "y"],
                ["EVALSHA", sha, "1", "rate:__rand_int__", "7", "7", "60", "1"],
            ]
            took = interleaved(
                {
                    name: lambda tls=tls: watched(server, directory / "cert", given.requests, tls, commands)  # type: ignore[misc]
                    for name, tls in SIDES.items()
                },
                given.pairs,
            )
        finally:
            server.process.terminate()
            server.process.wait()
    for place, words in enumerate(commands):
        for what, of in (
            ("throughput", lambda one, name=words[0]: one.per_s[name]),
            ("processor time of server and client", lambda one: one.cpu_s),
        ):
            figure = ratio(*([of(run[place]) for run in took[side]] for side in ("with", "without")))  # type: ignore[no-untyped-call]
            report(f"redis-benchmark --tls {words[0]}, `redis_tls: true`: {what}", figure.text(), "`false`", "-")


if __name__ == "__main__":
    main()
