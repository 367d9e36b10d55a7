"""What the benchmarks share: interleaved rounds, ratios, a whole agent that must lose nothing, a private Redis under
load.

Every figure is a ratio of two sides that ran in the same minute on the same machine; a figure taken while the agent
lost a single record does not count, and ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent.kernel.loaded_families import BPF_DIR, Loaded, load, release
from agent.kernel.probe import Probe, Program
from agent.probes import discover
from tests.patience import listening
from tests.ports import free_port
from tests.system.agent import Agent

T = TypeVar("T")
MIN_PAIRS = 7
EMPTY = Probe("empty", (Program("empty_enter", target="sys_enter"), Program("empty_exit", target="sys_exit")))
READ_CLOCK = "bpf_ktime_get_boot_ns();"


@dataclass(frozen=True)
class Figure:
    """Values of the rounds, and their median."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, form: str = ".3f") -> str:
        """``0.985 (0.971-0.992, n=7)``, and a warning where there were too few rounds to count."""
        few = "" if len(self.values) >= MIN_PAIRS else ", TOO FEW"
        return f"{self.median:{form}} ({min(self.values):{form}}-{max(self.values):{form}}, n={len(self.values)}{few})"


def ratio(over: Sequence[float], under: Sequence[float]) -> Figure:
    """Pair by pair."""
    return Figure([a / b for a, b in zip(over, under, strict=True)])


def interleaved(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Runs each side once a round, in turns forwards and backwards (A B B A A B ...), and says on stderr where it
    is.
    """
    out: dict[str, list[T]] = {name: [] for name in sides}
    for i in range(rounds):
        for name in list(sides)[:: -1 if i % 2 else 1]:
            print(f"round {i + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            out[name].append(sides[name]())
    return out


def arguments(description: str | None, **more: tuple[Any, str]) -> argparse.Namespace:
    """``--pairs`` and the script's own numbers, as ``name=(default, help)``. Says which machine this is."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help=f"interleaved rounds [{MIN_PAIRS}]")
    for name, (default, text) in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} [{default}]")
    given = parser.parse_args()
    kernel = os.uname()
    print(
        f"{os.cpu_count()} cores, Linux {kernel.release} {kernel.machine}, load before the start"
        f" {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    if others := other_agents():
        print(
            f"WARNING: other agents run ({', '.join(map(str, others))}): their probes are in both sides of every ratio",
            flush=True,
        )
    return given


def other_agents() -> list[int]:
    """Processes that carry the agent's name."""
    out = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if comm.read_text() == "tickscope\n":
                out.append(int(comm.parent.name))
    return sorted(out)


def report(what: str, figure: str, peer: str, target: str) -> None:
    """One row of the README's table."""
    print(f"| {what} | {figure} | {peer} | {target} |", flush=True)


@contextlib.contextmanager
def running(*args: str, config: str = "", env: dict[str, str] | None = None, settle_s: float = 2.0) -> Iterator[Agent]:
    """A whole agent that is ready; afterwards nothing may be lost. config: YAML lines, added to ``prometheus: ''``."""
    root = Path(tempfile.mkdtemp(prefix="tickscope-bench-"))
    agent = Agent(root, *args, config=f"prometheus: ''\n{config}", env=env)
    try:
        agent.ready()
        probes = {p["probe"]: p for p in agent.status()["probes"]}
        broken = [f"{name}: {p['reason']}" for name, p in probes.items() if p["state"] not in ("attached", "off")]
        if broken:
            raise SystemExit(f"not all probes are attached, so this counts for nothing: {'; '.join(broken)}")
        time.sleep(settle_s)
        yield agent
        time.sleep(1.5)  # the last interval, drain and append
        lost_nothing(agent)
    finally:
        agent.stop(signal.SIGTERM)
        for _ in range(100):  # what the agent gave to the sealer last, that finishes on its own
            shutil.rmtree(root, ignore_errors=True)
            if not root.exists():
                break
            time.sleep(0.1)


def lost_nothing(agent: Agent) -> None:
    """Ends the run unless the agent stored rows and lost none."""
    status = agent.status()
    lost = status["loss"] or agent.json("query", "loss")["rows"]
    if lost or status["store"]["state"] != "ok" or not sum(status["rows"].values()):
        raise SystemExit(f"the figure does not count: lost {lost}, store {status['store']}, rows {status['rows']}")


def only(*families: str) -> str:
    """A configuration line that turns every other family off."""
    return f"without: [{', '.join(sorted(discover().keys() - set(families)))}]\n"


def load_empty(body: str = "") -> Loaded:
    """Two programs that do nothing but ``body``, attached to sys_enter and sys_exit: what any full timing of system
    calls costs at least.
    """
    with tempfile.TemporaryDirectory() as directory:
        for path in BPF_DIR.iterdir():
            (Path(directory) / path.name).symlink_to(path)
        (Path(directory) / EMPTY.sources[0]).write_text(
            "".join(
                f"int {p.function}(struct bpf_raw_tracepoint_args *ctx) {{ {body} return 0; }}\n"
                for p in EMPTY.programs
            )
        )
        loaded = load([EMPTY], bpf_dir=Path(directory))
    family = loaded.families["empty"]
    if len(family.links) != 2:
        raise SystemExit(f"cannot attach the empty programs: {family.reason}")
    return loaded


@contextlib.contextmanager
def empty_system_call_probes(body: str = "") -> Iterator[None]:
    """The programs of ``load_empty``, for a while."""
    loaded = load_empty(body)
    try:
        yield
    finally:
        release(loaded)


@contextlib.contextmanager
def bpftrace_probes() -> Iterator[None]:
    """The same two empty programs as bpftrace attaches them: by the tracepoints' perf events."""
    program = (
        'tracepoint:raw_syscalls:sys_enter { } tracepoint:raw_syscalls:sys_exit { } interval:s:1 { printf("on\\n"); }'
    )
    mounted = (
        'mount -t tracefs none /sys/kernel/tracing && mount -t debugfs none /sys/kernel/debug; exec bpftrace -e "$0"'
    )
    peer = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", mounted, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert peer.stdout is not None and peer.stderr is not None
    try:
        if not any(line == "on\n" for line in peer.stdout):
            raise SystemExit(f"bpftrace does not attach: {peer.stderr.read()}")
        yield
    finally:
        peer.terminate()
        peer.communicate()


@dataclass(frozen=True)
class Load:
    """One run of redis-benchmark: requests a second by command, and processor time of both sides for all of it."""

    per_s: dict[str, float]
    server_cpu_s: float
    client_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.server_cpu_s + self.client_cpu_s


class Redis:
    """A redis-server on a free port of loopback, without persistence."""

    def __init__(self, directory: str) -> None:
        self.port = free_port()
        self.path = f"{directory}/redis.sock"
        command = [
            "redis-server",
            *f"--port {self.port} --bind 127.0.0.1 --unixsocket {self.path} --dir {directory} --appendonly no".split(),
            "--save",
            "",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        listening(self.port, process=self.process)

    def command(self, *words: str) -> None:
        subprocess.run(["redis-cli", "-p", str(self.port), *words], check=True, stdout=subprocess.DEVNULL)

    def load(self, requests: int) -> Load:
        """SET, then GET: 50 clients, no pipelining."""
        before = cpu_s(self.process.pid)
        client = subprocess.Popen(
            ["redis-benchmark", "-p", str(self.port), "-c", "50", "-n", str(requests), "-t", "set,get", "--csv"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        lines = [line.replace('"', "").split(",") for line in client.stdout]
        _, status, usage = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        if client.returncode:
            raise SystemExit(f"redis-benchmark ended with {client.returncode}")
        per_s = {cells[0]: float(cells[1]) for cells in lines if cells[0] in ("SET", "GET")}
        return Load(per_s, cpu_s(self.process.pid) - before, usage.ru_utime + usage.ru_stime)


@contextlib.contextmanager
def redis_server() -> Iterator[Redis]:
    with tempfile.TemporaryDirectory() as directory:
        server = Redis(directory)
        try:
            server.load(20_000)
            yield server
        finally:
            server.process.terminate()
            server.process.wait()


def cpu_s(pid: int) -> float:
    """Processor time of a live process, all threads and those that have ended, to the nanosecond: its CPU clock
    (include/linux/posix-timers_types.h, CPUCLOCK_SCHED). Raises FileNotFoundError for one that has ended.
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | 2) / 1e9
    except OSError as error:
        raise FileNotFoundError(pid) from error
