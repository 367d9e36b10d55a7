"""The demo's workload: that it is real, and that nothing of it stays, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.demo import clock_part, tls_part
from agent.demo.session import Workload
from agent.demo.workload import BASE, PREFIX
from agent.limiters.intake import TABLE, Intake
from agent.queues.brokers.redis import RedisStreams
from agent.queues.judged import Judged
from agent.queues.packing import TABLE as QUEUE_LAG
from agent.queues.packing import pack
from tests.lab import sockets
from tests.patience import until

DEADLINE_S = 60.0


def children(pid: int) -> dict[int, str]:
    """pid -> command name, of the direct children."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if int(rest[1]) == pid and rest[0] != "Z":
            found[int(stat.parent.name)] = name
    return found


def supervisors(pid: int) -> list[int]:
    return [child for child in children(pid) if b"agent.demo.workload" in Path(f"/proc/{child}/cmdline").read_bytes()]


def directories(supervisor: int) -> list[Path]:
    return list(BASE.glob(f"{PREFIX}{supervisor}-*"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def intake() -> Iterator[tuple[Path, Intake]]:
    """In a directory that user nobody may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "intake.sock"
        source = Intake(sockets.datagrams(path))
        yield path, source
        source.close()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_the_workload_is_real_stalls_redis_and_leaves_nothing(intake: tuple[Path, Intake]) -> None:
    path, source = intake
    decisions: list[np.ndarray] = []
    queues: list[np.ndarray] = []
    with Workload(path, duration_s=5) as workload:
        assert workload.redis_url is not None
        queue = Judged("redis", RedisStreams(RedisUrl.parse(workload.redis_url), timeout_s=0.3))
        (supervisor,) = supervisors(os.getpid())

        def seen() -> bool:
            decisions.extend(b.rows for b in source.drain(0))
            queues.append(np.frombuffer(pack(queue.poll()), QUEUE_LAG.dtype))
            rows = np.concatenate(decisions) if decisions else TABLE.empty(0)
            names = set(children(supervisor).values())
            go = "golimiter" in names or shutil.which("go") is None
            return go and bool((rows["duration_ns"] > 1_000_000_000).any())

        until(seen, DEADLINE_S)
        processes = children(supervisor)
        expected = {
            "redis-server",
            "demo-producer",
            "demo-consumer",
            "demo-limiter",
            "demo-tls-server",
            "demo-tls-client",
            "demo-files",
        }
        assert expected <= set(processes.values())
        assert {os.stat(f"/proc/{p}").st_uid for p, name in processes.items() if name != "go"} == {65534}
        queue.close()
    rows = np.concatenate(decisions)
    assert set(rows["comm"].tolist()) == {b"demo-limiter"}
    assert set(rows["pid"].tolist()) == {p for p, name in processes.items() if name == "demo-limiter"}
    assert set(rows["result"].tolist()) == {TABLE.code("result", "allowed"), TABLE.code("result", "refused")}
    assert (rows["tid"] == rows["pid"]).all()
    assert (rows["duration_ns"] > 0).all()
    lag = np.concatenate(queues)
    assert b"down" in lag["status"].tolist()
    assert set(lag["destination"].tolist()) == {b"orders"}
    assert (lag["in_per_s"] > 0).any()
    assert source.losses()["malformed"] == 0
    assert not any(alive(p) for p in [supervisor, *processes])
    assert directories(supervisor) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(workload.redis_url.split(":")[2].split("/")[0])))


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_redis_is_stalled_only_once_the_agent_is_ready(intake: tuple[Path, Intake]) -> None:
    """On a first start it compiles for a while, and would not see the stall."""
    path, _ = intake
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(path.with_name("control.sock")))
        control.listen(1)
        control.settimeout(DEADLINE_S)
        with Workload(path, duration_s=1) as workload:
            assert workload.redis_url is not None
            client = RespClient(RedisUrl.parse(workload.redis_url), timeout_s=0.8)
            asked, _ = control.accept()
            end = time.monotonic() + 3
            while time.monotonic() < end:
                client.pipeline([("PING",)])
            with asked:
                assert asked.recv(100) == b"status\n"
                asked.sendall(b"{}\n")

            def stalled() -> bool:
                try:
                    client.pipeline([("PING",)])
                except RedisDown:
                    return True
                return False

            until(stalled, DEADLINE_S)
            client.close()


PARENT = """
import subprocess, sys, time
from pathlib import Path
from agent.demo.session import Workload
with Workload(Path(sys.argv[1])) as workload:
    agent = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    workload.adopt(agent.pid)
    print(agent.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "none.sock")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    agent = int(parent.stdout.readline())
    (supervisor,) = supervisors(parent.pid)
    until(lambda: "demo-files" in children(supervisor).values(), DEADLINE_S)
    everything = [supervisor, *children(supervisor)]
    assert directories(supervisor) != []
    parent.send_signal(number)
    parent.wait()
    until(lambda: not any(alive(p) for p in [agent, *everything]), DEADLINE_S)
    assert directories(supervisor) == []
    parent.stdout.close()


def test_a_killed_supervisor_takes_its_parts_along_and_the_next_one_cleans_up(intake: tuple[Path, Intake]) -> None:
    path, _ = intake
    with Workload(path):
        (supervisor,) = supervisors(os.getpid())
        until(lambda: "demo-files" in children(supervisor).values(), DEADLINE_S)
        processes = [p for p, name in children(supervisor).items() if name != "go"]
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not any(alive(p) for p in processes), DEADLINE_S)
    assert directories(supervisor) != []
    with Workload(path):
        assert directories(supervisor) == []


def offset_ns() -> int:
    """REALTIME - MONOTONIC, the best of a few sandwiched readings."""
    readings = []
    for _ in range(20):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        readings.append((after - before, real - (before + after) // 2))
    return min(readings)[1]


@pytest.mark.usefixtures("own_clock")
@pytest.mark.parametrize("step_clock", [True, False])
def test_the_clock_is_stepped_only_when_asked_and_back_again(intake: tuple[Path, Intake], step_clock: bool) -> None:
    path, source = intake
    steps: list[bool] = []
    before_ns = offset_ns()
    with Workload(path, duration_s=1, step_clock=step_clock):
        end = time.monotonic() + (DEADLINE_S if step_clock else 6)
        while time.monotonic() < end and len(steps) < 2:
            now_ns = offset_ns()
            if 290_000 < abs(now_ns - before_ns) < 310_000:
                steps.append(now_ns > before_ns)
            before_ns = now_ns
            source.drain(0)
            time.sleep(0.01)
    assert steps == ([True, False] if step_clock else [])


def test_a_large_step_is_refused() -> None:
    with pytest.raises(ValueError, match="more than a demo may step"):
        clock_part.step(501)


@pytest.mark.parametrize("reset", [True, False])
def test_a_client_of_tls_ends_in_order_when_its_server_ended_first(reset: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        ended = pool.submit(tls_part.connect, listener.getsockname(), ssl.create_default_context())
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
        connection.recv(10_000)
        connection.close()
        assert ended.result(10) is None
