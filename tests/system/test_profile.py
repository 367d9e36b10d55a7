"""An on-demand profile, from a real fault to what `explain` tells: a disk whose requests take long, since the file
system that its file lies on is frozen again and again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.agent import Agent
from tests.system.frozen import FrozenDisk

USUAL_S, FREEZE_S, FAULT_S = 14, 0.7, 40

#: In a mount namespace of its own: a file system on the slow disk, and a limiter's decisions each of which waits for a
#: file on it.
JOURNAL = """
import json, os, socket, subprocess, sys, time
device, place, intake = sys.argv[1:]
subprocess.run(["mount", "-o", "noatime", device, place], check=True)
to = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
to.connect(intake)
file = os.open(place + "/journal", os.O_CREAT | os.O_WRONLY)
print("ready", flush=True)
while True:
    begun = time.monotonic_ns()
    os.pwrite(file, b"x" * 4096, 0)
    os.fsync(file)
    lasted = time.monotonic_ns() - begun
    to.send(json.dumps({"limiter": "journal", "result": "allowed", "duration_ns": lasted}).encode())
    time.sleep(0.02)
"""


@pytest.fixture
def quiet_folder() -> Iterator[Path]:
    """In memory, where there is room for that: what else this host's disks do must not matter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def slow_disk(quiet_folder: Path) -> Iterator[tuple[FrozenDisk, str]]:
    """The file system that is frozen, and the disk whose file lies on it."""
    below = FrozenDisk(quiet_folder, 96)
    device = ""
    try:
        image = below.path / "disk"
        with image.open("wb") as file:
            file.truncate(48 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-E", "nodiscard", image], check=True)
        device = subprocess.run(
            ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
        ).stdout.strip()
        yield below, device
    finally:
        if device:
            subprocess.run(["losetup", "--detach", device], check=True)
        below.close()


@contextmanager
def journal(agent: Agent, device: str, folder: Path) -> Iterator[int]:
    """The program, and its pid; its mount ends with it."""
    place = folder / "mounted"
    place.mkdir()
    command = [
        "unshare",
        "--mount",
        sys.executable,
        "-c",
        JOURNAL,
        device,
        str(place),
        str(agent.run_dir / "intake.seq.sock"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            yield program.pid
        finally:
            program.kill()


@contextmanager
def freezing(below: FrozenDisk) -> Iterator[None]:
    """Frozen for most of the time."""
    over = threading.Event()

    def again_and_again() -> None:
        while not over.is_set():
            below.freeze()
            over.wait(FREEZE_S)
            below.thaw()
            over.wait(0.05)

    thread = threading.Thread(target=again_and_again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tracepoints(pid: int) -> list[str]:
    """Those that this process has programs attached to."""
    reported = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            reported.append(path.read_text())
    return [line.split()[1] for text in reported for line in text.splitlines() if line.startswith("tp_name:")]


def always_attached(pid: int) -> list[str]:
    """Those outside the sampling window, which opens once a second."""
    readings = []
    for _ in range(12):
        readings.append(sorted(tracepoints(pid)))
        time.sleep(0.1)
    return min(readings, key=len)


def profiles(agent: Agent, pid: int) -> list[dict[str, Any]]:
    return [
        row for row in agent.json("query", "investigation", "--where", f"pid = {pid}")["rows"] if row["state"] == "done"
    ]


def test_a_slow_disk_is_checked(start: Callable[..., Agent], tmp_path: Path, slow_disk: tuple[FrozenDisk, str]) -> None:
    """Rows say what the disk did and where the process slept; the finding goes by it; nothing stays attached; what it
    took is reported.
    """
    below, device = slow_disk
    agent = start().ready()
    attached = always_attached(agent.pid())
    with journal(agent, device, tmp_path) as pid:
        time.sleep(USUAL_S)
        with freezing(below):
            finding = agent.until(lambda: _about_disk(agent), FAULT_S)
        profile = next(
            profile for profile in profiles(agent, pid) if _slowest_ns(agent, profile, device) > FREEZE_S / 3 * 1e9
        )
        assert profile["symptom"] in ("decision_latency", "blocked_time", "silence")  # whichever is known first
        assert profile["reason"] is None
        assert {"offcpu", "block"} <= set(profile["families"].split())
        of_profile = f"investigation = '{profile['investigation']}'"
        where = agent.json(
            "query", "off_cpu", "--where", f"{of_profile} and pid = {pid} and syscall = 'fsync' and kind = 'slow'"
        )["rows"]
        assert sum(row["sum_ns"] for row in where) > profile["interval_ns"] / 2
        assert any("fsync" in row["kernel_stack"] and "wait" in row["kernel_stack"] for row in where)
        assert {row["state"] for row in where} <= {"uninterruptible", "ready"}
        assert (finding["cause_detail"], finding["culprit_object"]) == ("slow", device)
        reported = agent.cli("explain", finding["finding_id"]).stdout
        assert f"disk {device[5:]}:" in reported and " < " in reported and "On-demand profile of" in reported
        assert all(len(line) <= 100 for line in reported.splitlines())
    status = agent.status()
    assert not [row for row in status["loss"] if row["source"].startswith(("offcpu", "block", "contention"))]
    assert status["investigation"]["profiles"] >= 1 and status["investigation"]["spent_s"] <= 15
    assert "on-demand profile  none now; " in agent.cli("status").stdout
    agent.until(lambda: always_attached(agent.pid()) == attached, 10)


def _slowest_ns(agent: Agent, profile: dict[str, Any], device: str) -> int:
    whole = profile["investigation"].partition(".")[0]
    where = f"investigation like '{whole}.%' and op = 'all' and device = '{device[5:]}'"
    return max((row["max_ns"] for row in agent.json("query", "block_io", "--where", where)["rows"]), default=0)


def _about_disk(agent: Agent) -> dict[str, Any] | None:
    rows = agent.json("findings")["rows"]
    return next((row for row in rows if row["cause"] == "disk"), None)
