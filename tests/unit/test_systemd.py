"""What systemd hears from the agent, on a real datagram socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent.posix.systemd import Systemd


@pytest.fixture(params=["a path", "an abstract name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """systemd's end of the socket, whose name is in this process's environment."""
    name = str(tmp_path / "notify") if request.param == "a path" else f"@tickscope-test-{os.getpid()}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(name.replace("@", "\0", 1))
    sock.setblocking(False)
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    return sock


def received(sock: socket.socket) -> list[bytes]:
    out = []
    try:
        while True:
            out.append(sock.recv(1024))
    except BlockingIOError:
        return out


@pytest.mark.parametrize(("watchdog", "beats"), [("30000000", [b"WATCHDOG=1"] * 2), (None, [])])
def test_systemd_hears_of_the_start_of_life_and_of_the_end(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, watchdog: str | None, beats: list[bytes]
) -> None:
    if watchdog:
        monkeypatch.setenv("WATCHDOG_USEC", watchdog)
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with manager:
        systemd = Systemd()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)  # children get none of it
        systemd.ready()
        for _ in range(2):
            systemd.alive()
        systemd.stopping()
        assert received(manager) == [b"READY=1", *beats, b"STOPPING=1"]


def test_a_systemd_that_does_not_read_or_is_gone_stops_nothing(manager: socket.socket) -> None:
    systemd = Systemd()
    for _ in range(10_000):  # far more than its queue holds
        systemd.ready()
    manager.close()
    systemd.ready()


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Systemd().ready()


def test_a_name_that_leads_nowhere_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    Systemd().ready()
