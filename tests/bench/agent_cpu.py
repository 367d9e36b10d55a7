"""The agent's own processor time, idle and under a steady load: ``python -m tests.bench.agent_cpu [--seconds N]``.

The load: 1,000 decisions a second on the intake socket, 1,000 requests with an answer a second over one TCP connection
(so 2,000 segments), and 50 TLS handshakes a second (OpenSSL, both ends here). Printed for each of ``idle`` and
``load``: percent of one core of each resident process and of all together, and how long the agent stayed on a processor
at a time (a BPF program at sched_switch), p50, p99, p99.9 and longest. With ``--profile 1`` the loop's functions by
their processor time under load (cProfile, which makes small functions look dearer than they are, and all of it slower).

As root. What else ran on the machine is printed beside it: other work makes the same instructions take longer.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from agent.kernel.loaded_families import BPF_DIR, load, release
from agent.kernel.probe import Probe, Program
from agent.kernel.ring import SharedArray
from tests.bench.common import arguments, cpu_s, report, running
from tests.bench.idle import machine_busy_s
from tests.bench.memory import descendants
from tests.inject import injected
from tests.system.agent import Agent

DECISIONS_PER_S, REQUESTS_PER_S, HANDSHAKES_PER_S = 1_000, 1_000, 50
#: Of the histogram of runs: the width of a bucket, and how many there are.
_BUCKET_NS, _BUCKETS = 20_000, 4096


def at_rate(per_s: int, until: float) -> Iterator[None]:
    """Yields so often; what is late is made up for."""
    due = time.monotonic()
    while (now := time.monotonic()) < until:
        if now < due:
            time.sleep(min(due, until) - now)
            continue
        due += 1 / per_s
        yield


def decide(path: str, until: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as intake:
        intake.connect(path)
        for i, _ in enumerate(at_rate(DECISIONS_PER_S, until)):
            text = {
                "limiter": f"bench-{i % 5}",
                "result": "refused" if i % 10 == 0 else "allowed",
                "key": f"customer-{i % 50}",
                "limit_per_s": 1000,
                "duration_ns": 20_000,
            }
            intake.send(json.dumps(text).encode())


def request(until: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()

    def serve() -> None:
        while server.recv(100):
            server.send(b"y" * 100)

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in at_rate(REQUESTS_PER_S, until):
        client.send(b"x" * 100)
        client.recv(100)
    client.close()
    thread.join()


def certificate(directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    return cert, key


def shake_hands(cert: str, key: str, until: float) -> None:
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(cert, key)
    client_context = ssl.create_default_context(cafile=cert)
    client_context.check_hostname = False
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                with server_context.wrap_socket(connection, server_side=True) as served:
                    if served.recv(100) == b"end":
                        return
                    served.send(b"y")
                    served.recv(100)
            except (OSError, ssl.SSLError):
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in at_rate(HANDSHAKES_PER_S, until):
        with socket.create_connection(listener.getsockname()) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client_context.wrap_socket(raw) as shaken:
                shaken.send(b"x")
                shaken.recv(100)
    with socket.create_connection(listener.getsockname()) as raw, client_context.wrap_socket(raw) as shaken:
        shaken.send(b"end")
    thread.join()


@contextlib.contextmanager
def load_for(agent: Agent, seconds: float) -> Iterator[None]:
    """The standing load, in processes of its own."""
    directory = Path(tempfile.mkdtemp(prefix="tickscope-load-"))
    cert, key = certificate(directory)
    until = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=decide, args=(str(agent.run_dir / "intake.sock"), until)),
        context.Process(target=request, args=(until,)),
        context.Process(target=shake_hands, args=(str(cert), str(key), until)),
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.join()
        shutil.rmtree(directory)


class Runs:
    """How long threads of one process stayed on a processor at a time: from one sched_switch to the next."""

    def __init__(self) -> None:
        options = {"RUNS_BUCKET_NS": _BUCKET_NS, "RUNS_BUCKETS": _BUCKETS}
        probe = Probe(
            "runs",
            (Program("runs_switch", target="sched_switch"),),
            options=options,
            maps=("runs_counts", "runs_of"),
        )
        with tempfile.TemporaryDirectory() as directory:
            for path in BPF_DIR.iterdir():
                (Path(directory) / path.name).symlink_to(path)
            shutil.copy(Path(__file__).with_name("runs.bpf.c"), directory)
            self._loaded = load([probe], bpf_dir=Path(directory))
        family = self._loaded.families["runs"]
        if not family.links:
            raise SystemExit(f"cannot attach to sched_switch: {family.reason}")
        self._counts = SharedArray(family.maps["runs_counts"], "<u8").values
        self._of = SharedArray(family.maps["runs_of"], "<u8").values

    def watch(self, pid: int) -> None:
        self._counts[:] = 0
        self._of[0] = pid

    def text(self) -> str:
        """p50, p99, p99.9 and longest in ms (upper ends of buckets), and how many runs there were."""
        counts = self._counts[:_BUCKETS].astype(np.int64)
        total = int(counts.sum())
        if not total:
            raise SystemExit("no run of the agent was seen")
        reached = np.cumsum(counts)
        ms = [(int(np.searchsorted(reached, share * total)) + 1) * _BUCKET_NS / 1e6 for share in (0.5, 0.99, 0.999)]
        longest = (int(np.flatnonzero(counts)[-1]) + 1) * _BUCKET_NS / 1e6
        return f"p50 {ms[0]:.2f}, p99 {ms[1]:.2f}, p99.9 {ms[2]:.2f}, longest {longest:.2f} ms (n={total})"

    def close(self) -> None:
        release(self._loaded)


#: Put into the agent from outside: its loop under cProfile, by the thread's processor time.
_PROFILED = """
import os, sys
if "agent.start" in sys.orig_argv and os.environ.get("TICKSCOPE_BENCH_PROFILE"):
    import importlib.abc, importlib.machinery
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "agent.service.loop":
                return None
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            load = spec.loader.exec_module
            def exec_module(module):
                load(module)
                profile_runs(module.Loop)
            spec.loader.exec_module = exec_module
            return spec
    sys.meta_path.insert(0, Finder())
    def profile_runs(Loop):
        import cProfile, pstats, time
        run = Loop.run
        def profiled(self, *args):
            profile = cProfile.Profile(time.thread_time_ns, 1e-9)
            try:
                return profile.runcall(run, self, *args)
            finally:
                with open(os.environ["TICKSCOPE_BENCH_PROFILE"], "w") as out:
                    for order in ("tottime", "cumtime"):
                        pstats.Stats(profile, stream=out).strip_dirs().sort_stats(order).print_stats(70)
        Loop.run = profiled
"""


def measure(what: str, agent: Agent, runs: Runs, seconds: float, aim: str) -> None:
    main = agent.pid()
    roles = {p["pid"]: p["role"] for p in agent.status()["processes"]}
    runs.watch(main)
    before = {pid: cpu_s(pid) for pid in descendants(agent.process.pid)}
    busy, start = machine_busy_s(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - start
    used = {}
    for pid, spent in before.items():
        with contextlib.suppress(FileNotFoundError):  # an ELF analyzer that has ended
            used[pid] = (cpu_s(pid) - spent) / took * 100
    others = (machine_busy_s() - busy) / took * 100 - sum(used.values())
    parts = ", ".join(f"{roles.get(pid, pid)} {percent:.2f}" for pid, percent in used.items() if percent >= 0.005)
    report(
        f"agent's processor time, {what}, {took:.0f} s",
        f"{sum(used.values()):.2f} % of a core ({parts}); everything else {others:.0f} %",
        "-",
        aim,
    )
    report(f"runs of the agent on a processor, {what}", runs.text(), "-", "p99.9 <= 5 ms")


def main() -> None:
    given = arguments(
        __doc__, seconds=(30.0, "to watch each"), profile=(0, "1: functions under load"), idle=(1, "0: load only")
    )
    runs = Runs()
    with tempfile.TemporaryDirectory() as directory, injected(_PROFILED) as env:
        os.chmod(directory, 0o777)  # the agent's user writes there
        out = Path(directory) / "profile"
        with running(settle_s=6, env={**env, "TICKSCOPE_BENCH_PROFILE": str(out)} if given.profile else {}) as agent:
            if given.idle:
                measure("idle", agent, runs, given.seconds, "<= 0.7 %")
            settle = 5.0
            with load_for(agent, given.seconds + settle + 3):
                time.sleep(settle)
                before = agent.status()["rows"]
                measure("load", agent, runs, given.seconds, "<= 5 %")
                after = agent.status()["rows"]
            print({name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)})
        if given.profile:
            print(out.read_text())
    runs.close()


if __name__ == "__main__":
    main()
