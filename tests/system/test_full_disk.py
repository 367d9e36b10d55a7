"""A store on a file system that really is full, or fails: what that costs is reported while it lasts and after,
exactly, and the memory of the agent stays bounded.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.agent import Agent

#: ioctl of ext4: from now on every access fails with EIO, as on a disk that is gone.
_EXT4_SHUTDOWN, _NO_FLUSH = 0x8004587D, struct.pack("<I", 2)
_GROWTH_BYTES = 24 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """8 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """ext4 in a file."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Flood:
    """Some 10,000 decisions a second by a connection to the intake, and TCP connections, while in the block; ``sent``
    counts the decisions.
    """

    def __init__(self, agent: Agent) -> None:
        self.sent, self._stop = 0, threading.Event()
        self._path = str(agent.run_dir / "intake.seq.sock")
        self._threads = [threading.Thread(target=work) for work in (self._decide, self._connect)]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _decide(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(self._path)
            while not self._stop.is_set():
                sock.send(
                    json.dumps(
                        {"limiter": f"flood{self.sent % 7}", "result": "allowed", "key": str(self.sent % 1009)}
                    ).encode()
                )
                self.sent += 1
                if not self.sent % 50:
                    time.sleep(0.005)

    def _connect(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            while not self._stop.is_set():
                with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
                    client.send(b"x")
                    peer.recv(1)
                time.sleep(0.001)


def memory(agent: Agent) -> int:
    return sum(int(p["pss_bytes"]) for p in agent.status()["processes"])


def lost(agent: Agent, source: str) -> int:
    rows = agent.json("query", "loss", "--where", f"stage = 'store' AND source = '{source}'", "--limit", "1000")["rows"]
    return sum(int(row["count"]) for row in rows)


def test_what_a_full_disk_costs_is_reported_while_it_is_full_and_adds_up_after(
    start: Callable[..., Agent], small: Path
) -> None:
    agent = start(env={"TICKSCOPE_STORE": str(small / "store")}).ready()
    before = memory(agent)
    with Flood(agent) as flood:
        agent.until(
            lambda: (
                {"limiter_decision", "tcp_close"}
                <= {loss["source"] for loss in agent.status()["loss"] if loss["stage"] == "store"}
            )
        )
        store = agent.status()["store"]
        assert "No space left" in store["reason"]
        assert store["remedy"]
        first = agent.until(lambda: lost(agent, "limiter_decision"))
        agent.until(lambda: lost(agent, "limiter_decision") > first)
        asked = agent.cli("query", "tcp_close", "--limit", "1", check=False)
        assert "No space left" in asked.stderr
        assert "records lost in store (tcp_close)" in asked.stderr
        assert memory(agent) < before + _GROWTH_BYTES
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    agent.until(lambda: agent.status()["store"]["state"] == "ok")
    time.sleep(1)
    stored = agent.json("sql", "SELECT count(*) n FROM limiter_decision")["rows"][0]["n"]
    missing = lost(agent, "limiter_decision")
    assert missing > first
    assert stored + missing == flood.sent
    assert {"stage": "store", "source": "limiter_decision", "count": missing} in agent.status()["loss"]
    asked = agent.cli("query", "tcp_close", "--group-by", "comm")
    assert "No space left" not in asked.stderr
    assert "records lost in store (tcp_close)" in asked.stderr
    assert agent.stop() == 130


@contextmanager
def gone(disk: Path) -> Iterator[None]:
    fd = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _EXT4_SHUTDOWN, _NO_FLUSH)
        yield
    finally:
        os.close(fd)


def test_a_disk_that_is_gone_is_survived(start: Callable[..., Agent], disk: Path) -> None:
    agent = start(env={"TICKSCOPE_STORE": str(disk / "store")}).ready()
    with gone(disk):
        with Flood(agent):
            store = agent.until(lambda: (s := agent.status()["store"])["dropped_rows"] and s)
        assert "Input/output error" in store["reason"]
        assert "dmesg" in store["remedy"]
        asked = agent.cli("query", "limiter_decision", check=False)
        assert asked.returncode == 4
        assert "Input/output error" in asked.stderr
        assert "Traceback" not in asked.stderr
        assert agent.stop() == 130
    assert "Traceback" not in agent.log()


def test_a_disk_that_the_kernel_makes_read_only_is_survived(start: Callable[..., Agent], disk: Path) -> None:
    agent = start(env={"TICKSCOPE_STORE": str(disk / "store")}).ready()
    assert agent.some("socket_queue", "true")
    subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=False, capture_output=True)
    with Flood(agent):
        store = agent.until(lambda: (s := agent.status()["store"])["dropped_rows"] and s)
    assert "Read-only file system" in store["reason"]
    assert "read-write" in store["remedy"]
    assert agent.json("query", "socket_queue", "--limit", "1")["rows"]  # what was stored before can be read
    assert agent.stop() == 130
    assert "Traceback" not in agent.log()
