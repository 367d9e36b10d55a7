"""What the agent keeps in memory, and how soon it is ready: ``python -m tests.bench.memory [--seconds N] [--starts
N]``.

PSS (/proc/PID/smaps_rollup) summed over all resident processes every 100 ms, all default probes, while redis-benchmark
runs. Three variants: OTLP/HTTP to a receiver; a Redis source as well; gRPC as well. Sealer and ELF analyzer, which come
and go, are shown apart; so is the kernel's memory for BPF maps, which no process's PSS contains. Start: from the
command to ``ready``, after a first start that warms the caches, and ``ready_s`` of status.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.common import MIN_PAIRS, Figure, Redis, arguments, redis_server, report, running
from tests.servers.strict_receiver import StrictReceiver
from tests.system.agent import Agent

_MIB = 2**20
#: Processes that come and go.
PASSING = ("agent.store.seal", "agent.targets.elf_analyzer")


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for child in task.read_text().split():
                out += descendants(int(child))
    return out


def pss_bytes(pid: int) -> int:
    """0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def map_bytes(pid: int) -> int:
    """The kernel's memory for the BPF maps that a process holds (``memlock`` in fdinfo)."""
    maps = {}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            fields = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
            if "map_id" in fields:
                maps[fields["map_id"]] = int(fields["memlock"])
    return sum(maps.values())


class Sampler:
    """PSS of an agent's resident processes, and of all its processes, every 100 ms while in the block."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.roles: dict[str, int] = {}
        self.resident: list[int] = []
        self.all: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.roles = {p["role"]: pss_bytes(p["pid"]) for p in self._agent.status()["processes"]}

    def _run(self) -> None:
        known = {int(p["pid"]) for p in self._agent.status()["processes"]}
        while not self._stop.wait(0.1):
            sizes = {pid: pss_bytes(pid) for pid in {*known, *descendants(self._agent.process.pid)}}
            passing = {pid for pid in sizes if pid not in known and any(name in _command(pid) for name in PASSING)}
            self.resident.append(sum(size for pid, size in sizes.items() if pid not in passing))
            self.all.append(sum(sizes.values()))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def keep_busy(server: Redis, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        server.load(50_000)


def measure(what: str, target: int, server: Redis, seconds: float, *, grpc: bool, redis: bool) -> None:
    config = f"redis: ['redis://127.0.0.1:{server.port}/0?streams=bench']\npoll_s: 0.5\n" if redis else ""
    with StrictReceiver(grpc=grpc) as receiver:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc" if grpc else "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "2000",
        }
        with running(config=config, env=env) as agent:
            with Sampler(agent) as seen:
                keep_busy(server, seconds)
            rows, maps = agent.status()["rows"], map_bytes(agent.pid())
            if redis and not rows.get("queue_lag"):
                raise SystemExit(f"the Redis source gave no rows: {agent.status()['sources']}")
        if not receiver.metrics or receiver.violations:
            raise SystemExit(f"the receiver got {len(receiver.metrics)} metrics, violations {receiver.violations[:3]}")
    steady = statistics.median(seen.resident[len(seen.resident) // 2 :])
    parts = ", ".join(f"{role} {size / _MIB:.1f}" for role, size in seen.roles.items())
    report(f"PSS, {what}: steady", f"{steady / _MIB:.1f} MiB ({parts})", "-", f"<= {target} MB")
    report(f"PSS, {what}: peak", f"{max(seen.resident) / _MIB:.1f} MiB", "-", f"<= {target} MB")
    report(f"Kernel memory of BPF maps, {what}", f"{maps / _MIB:.1f} MiB", "-", "-")
    if max(seen.all) > max(seen.resident):
        report(
            f"PSS, {what}: peak with sealer and ELF analyzer, which come and go",
            f"{max(seen.all) / _MIB:.1f} MiB",
            "-",
            "-",
        )


def started() -> tuple[float, float]:
    """(from the command to ``ready`` on stderr, the agent's own ready_s), seconds."""
    before = time.monotonic()
    with running(settle_s=0) as agent:
        ready = (agent.root / "stderr").stat().st_mtime - time.time() + time.monotonic() - before
        return ready, float(agent.status()["ready_s"])


def starts(n: int) -> None:
    started()
    took = [started() for _ in range(n)]
    report(
        "Start to all attached, warm: from the command",
        f"{Figure([a for a, _ in took]).text('.2f')} s",
        "-",
        "<= 0.6 s",
    )
    report(
        "Start to all attached, warm: ready_s of status",
        f"{Figure([b for _, b in took]).text('.2f')} s",
        "-",
        "<= 0.6 s",
    )


def main() -> None:
    given = arguments(__doc__, seconds=(30.0, "of load a variant"), starts=(MIN_PAIRS, "warm starts"))
    starts(given.starts)
    variants: list[Callable[[Redis], None]] = [
        lambda server: measure("OTLP/HTTP", 56, server, given.seconds, grpc=False, redis=False),
        lambda server: measure("OTLP/HTTP and a Redis source", 80, server, given.seconds, grpc=False, redis=True),
        lambda server: measure("OTLP/gRPC and a Redis source", 96, server, given.seconds, grpc=True, redis=True),
    ]
    with redis_server() as server:
        for words in (("XADD", "bench", "*", "a", "b"), ("XGROUP", "CREATE", "bench", "readers", "0")):
            server.command(*words)
        for variant in variants:
            variant(server)


if __name__ == "__main__":
    main()
