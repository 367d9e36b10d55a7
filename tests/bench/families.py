"""What each probe family costs: ``python -m tests.bench.families [--pairs N] [--requests N]``. As root.

An agent with that family alone against no agent, under redis-benchmark; nanoseconds a hit of each program in an agent
with all of them (kernel.bpf_stats_enabled, which itself adds two clock reads to a hit); and the worst case for system
call timing,
``dd if=/dev/zero of=/dev/null bs=512``.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import functools
import os
import shutil
import ssl
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.kernel import bpf, syscall
from agent.probes import discover
from tests.bench.common import (
    Load,
    Redis,
    arguments,
    bpftrace_probes,
    empty_system_call_probes,
    interleaved,
    only,
    ratio,
    redis_server,
    report,
    running,
)
from tests.servers.certificates import self_signed

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
_NEXT_ID, _FD_BY_ID = 11, 13
_GO = Path(bpf.__file__).parents[1] / "demo" / "golimiter"


def program_ids() -> list[int]:
    """Every BPF program of the machine, oldest first."""
    ids = [0]
    while True:
        attr = syscall.attributes(struct.pack("<II", ids[-1], 0))
        if syscall.bpf(_NEXT_ID, attr) < 0:
            return ids[1:]
        ids.append(struct.unpack_from("<I", attr.raw, 4)[0])


def name_and_stats(program: int) -> tuple[str, int, int] | None:
    """(name, run_ns, hits); None where it is gone."""
    fd = syscall.bpf(_FD_BY_ID, syscall.attributes(struct.pack("<I", program)))
    if fd < 0:
        return None
    try:
        info = ct.create_string_buffer(232)
        syscall.bpf(bpf.OBJ_GET_INFO, syscall.attributes(struct.pack("<IIQ", fd, len(info), ct.addressof(info))))
        run_ns, hits, *_ = bpf.program_stats(fd)
        return info.raw[64:80].rstrip(b"\0").decode(), run_ns, hits
    finally:
        os.close(fd)


@contextlib.contextmanager
def stats_on() -> Iterator[None]:
    saved = _STATS.read_text()
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text(saved)


def handshakes(n: int) -> None:
    """TLS 1.3 in memory, both ends in this process."""
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = self_signed(Path(directory))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    for _ in range(n):
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        waiting = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
        while waiting:
            for end in list(waiting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    waiting.remove(end)


@contextlib.contextmanager
def go_limiter() -> Iterator[str]:
    """The demonstration's Go program, 35 decisions a second; an empty path where Go is not installed."""
    with tempfile.TemporaryDirectory() as directory:
        binary = Path(directory) / "golimiter"
        if shutil.which("go"):
            subprocess.run(
                ["go", "build", "-o", str(binary), "."], cwd=_GO, check=True, env={**os.environ, "CGO_ENABLED": "0"}
            )
        yield str(binary) if binary.exists() else ""


def drive(server: Redis, requests: int, go: str) -> None:
    """Something of everything."""
    limited = subprocess.Popen([go]) if go else None
    server.load(requests)
    for _ in range(211):
        subprocess.run(["/bin/true"], check=True)
    handshakes(211)
    if limited:
        limited.terminate()
        limited.wait()


def per_hit(server: Redis, requests: int) -> None:
    before = set(program_ids())
    with go_limiter() as go, stats_on(), running("--syscalls", "full") as agent:
        status = {p["probe"]: p for p in agent.status()["probes"]}
        mine = [p for p in program_ids() if p not in before]
        drive(server, requests, go)
        stats = [found for program in mine if (found := name_and_stats(program))]
    for family in discover().values():
        for program in family.programs:
            found = next((s for s in stats if s[0] == program.function[:15]), None)
            if found is None:
                continue
            stats.remove(found)
            _, run_ns, hits = found
            what = f"{run_ns / hits:.0f} ns ({hits} hits)" if hits else "never ran here"
            report(f"{family.name}: {program.function}, a hit", what, status[family.name]["state"], "-")


def with_family(server: Redis, requests: int, config: str, *args: str) -> Load:
    with running(*args, config=config):
        return server.load(requests)


def per_family(server: Redis, pairs: int, requests: int) -> None:
    sides: dict[str, Callable[[], Load]] = {"none": lambda: server.load(requests)}
    for name in sorted(discover()):
        modes = ("blocked", "sampled", "full") if name == "syscalls" else ("",)
        for mode in modes:
            flags = ["--syscalls", mode] if mode else []
            sides[f"{name} {mode}".strip()] = functools.partial(with_family, server, requests, only(name), *flags)
    took = interleaved(sides, pairs)
    none = took.pop("none")
    for name, runs in took.items():
        for command in ("SET", "GET"):
            report(
                f"{name} alone: redis {command}",
                ratio(*([x.per_s[command] for x in s] for s in (runs, none))).text(),
                "no agent",
                "-",
            )
        report(
            f"{name} alone: CPU of server and client",
            ratio(*([x.cpu_s for x in s] for s in (runs, none))).text(),
            "no agent",
            "-",
        )


def dd(blocks: int) -> float:
    """Seconds."""
    start = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=512", f"count={blocks}"], check=True, capture_output=True)
    return time.monotonic() - start


def dd_with(blocks: int, mode: str) -> float:
    with running("--syscalls", mode):
        return dd(blocks)


def dd_with_empty(blocks: int) -> float:
    with empty_system_call_probes():
        return dd(blocks)


def dd_with_bpftrace(blocks: int) -> float:
    with bpftrace_probes():
        return dd(blocks)


def worst_case(pairs: int, blocks: int) -> None:
    sides: dict[str, Callable[[], float]] = {"none": lambda: dd(blocks), "empty": lambda: dd_with_empty(blocks)}
    for mode in ("blocked", "sampled", "full"):
        sides[mode] = functools.partial(dd_with, blocks, mode)
    if shutil.which("bpftrace"):
        sides["bpftrace, two empty programs"] = lambda: dd_with_bpftrace(blocks)
    took = interleaved(sides, pairs)
    none = took.pop("none")
    for name in took:
        report(f"dd bs=512, {name}: time", ratio(took[name], none).text(".2f"), "no agent", "-")
    report(
        "dd bs=512, full: time",
        ratio(took["full"], took["empty"]).text(".2f"),
        "two empty programs on sys_enter and sys_exit",
        "-",
    )


def main() -> None:
    given = arguments(__doc__, requests=(100_000, "requests of each command in a run"), blocks=(2_000_000, "of dd"))
    with redis_server() as server:
        per_hit(server, given.requests)
        per_family(server, given.pairs, given.requests)
    worst_case(given.pairs, given.blocks)


if __name__ == "__main__":
    main()
