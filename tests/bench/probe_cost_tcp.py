"""What the tcp family costs: nanoseconds a hit per program (kernel.bpf_stats_enabled), and the throughput of Redis with and without it.

    python -m tests.bench.probe_cost_tcp [PAIRS]

As root, with redis-server, redis-benchmark and BCC. The kernel's measuring adds two clock reads to each hit; an empty program on
tcp_probe in the same run shows how much, and the net figures are without it. Ratios are medians of interleaved pairs, each
drained as the agent would, and count only where nothing was lost.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from agent.kernel.bpf import program_stats
from agent.kernel.load import BPF_DIR, load
from agent.kernel.source import KernelSource
from agent.probes import Probe, Program, discover

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
CONNECTS = 5003
EMPTY = Probe("empty", (Program("on_empty", target="tcp_probe"),))


@contextlib.contextmanager
def redis_server() -> Iterator[int]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    with tempfile.TemporaryDirectory() as directory:
        command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                for _ in range(100):
                    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                        break
                    time.sleep(0.05)
                yield port
            finally:
                process.terminate()


def requests_per_s(port: int, n: int = 200_000) -> float:
    """GET and SET, 50 clients, no pipelining: the mean of both rates."""
    command = ["redis-benchmark", "-p", str(port), "-c", "50", "-n", str(n), "-t", "get,set", "--csv"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return statistics.mean(float(line.split(",")[1].strip('"')) for line in lines if line.startswith(('"GET"', '"SET"')))


def churn(n: int) -> None:
    """n connections that are made, used and closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(n):
            with socket.create_connection(listener.getsockname()) as client:
                server, _ = listener.accept()
                client.sendall(b"x")
                server.recv(1)
                server.close()


@contextlib.contextmanager
def sources_with_empty() -> Iterator[Path]:
    """The BPF sources and a program that does nothing."""
    with tempfile.TemporaryDirectory() as directory:
        for path in BPF_DIR.iterdir():
            (Path(directory) / path.name).symlink_to(path)
        (Path(directory) / EMPTY.sources[0]).write_text("int on_empty(struct bpf_raw_tracepoint_args *ctx) { return 0; }\n")
        yield Path(directory)


class Tcp:
    """The attached family, drained every 10 ms by a thread."""

    def __init__(self, *more: Probe, bpf_dir: Path = BPF_DIR) -> None:
        self.probes, self.bpf_dir = [discover()["tcp"], *more], bpf_dir

    def __enter__(self) -> Tcp:
        self.loaded = load(self.probes, bpf_dir=self.bpf_dir)
        self.family = self.loaded.families["tcp"]
        if self.family.state != "attached":
            raise SystemExit(self.family.reason)
        self.source = KernelSource(self.loaded)
        self.rows: dict[str, int] = {}
        self.lost = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain)
        self._thread.start()
        return self

    def _drain(self) -> None:
        while not self._stop.wait(0.01):
            for batch in self.source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                self.rows[batch.table] = self.rows.get(batch.table, 0) + len(batch.rows)
                if batch.table == "loss":
                    self.lost += int(batch.rows["count"].sum())

    def costs(self) -> dict[str, tuple[int, int]]:
        families = self.loaded.families.values()
        return {name: program_stats(fd)[:2] for family in families for name, fd in family.programs.items()}

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.source.close()
        if self.lost:
            raise SystemExit(f"{self.lost} records lost: the figures do not count")


def per_hit(port: int) -> None:
    saved = STATS.read_text()
    STATS.write_text("1")
    try:
        for name, work in (("redis-benchmark", lambda: requests_per_s(port)), (f"{CONNECTS} connections", lambda: churn(CONNECTS))):
            with sources_with_empty() as bpf_dir, Tcp(EMPTY, bpf_dir=bpf_dir) as tcp:
                work()
                time.sleep(0.2)
                costs = tcp.costs()
            nothing = costs["on_empty"][0] / max(costs["on_empty"][1], 1)
            print(f"{name}: rows {tcp.rows}")
            for program, (run_ns, hits) in costs.items():
                if hits:
                    print(f"  {program:26}{hits:>9} hits {run_ns / hits:8.1f} ns a hit, {run_ns / hits - nothing:7.1f} net")
    finally:
        STATS.write_text(saved)


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with redis_server() as port:
        per_hit(port)
        requests_per_s(port, 50_000)
        ratios = []
        for i in range(pairs):
            without = requests_per_s(port) if i % 2 else 0.0
            with Tcp():
                attached = requests_per_s(port)
            without = without or requests_per_s(port)
            ratios.append(attached / without)
            print(f"pair {i + 1}: {attached:.0f} / {without:.0f} = {ratios[-1]:.3f}")
        if ratios:
            print(f"throughput with / without: median {statistics.median(ratios):.3f} of {pairs}")


if __name__ == "__main__":
    main()
