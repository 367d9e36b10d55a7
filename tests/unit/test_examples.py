"""What we offer programs to copy never holds them up: with no agent, with one that is stopped, and with one that comes
back. And it goes on with that one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.limiters import intake as room
from agent.limiters.intake import TABLE, Intake
from tests.lab import sockets

ROOT = Path(__file__).parents[2]


def example() -> Any:
    spec = importlib.util.spec_from_file_location("report", ROOT / "deploy/examples/report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Decisions


def page_block(page: str, holds: str) -> str:
    (lines,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        if holds in block
    ]
    return str(lines)


def page() -> Any:
    """The lines of docs/limiters-report.md, less the call at their end, whose socket is the installed agent's."""
    lines = page_block("limiters-report.md", "class Decisions")
    names: dict[str, Any] = {}
    exec(lines.partition("\ndecisions = ")[0], names)
    return names["Decisions"]


@pytest.fixture(params=[example, page])
def decisions(request: pytest.FixtureRequest, place: Path) -> Any:
    return request.param()(str(place / "intake.seq.sock"))


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def unhurt(work: Callable[[], None]) -> None:
    """Ends by itself: what waits without end would stay in its thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits"


def counted(source: Intake) -> tuple[int, int]:
    """(decisions that came, decisions that senders say they dropped), until nothing waits."""
    came = 0
    while rows := sum(len(b.rows) for b in source.drain(0) if b.table == TABLE.name):
        came += rows
    return came, source.losses()["dropped"]


def test_a_caller_is_never_held_up_and_every_decision_is_reported_or_counted(place: Path, decisions: Any) -> None:
    def render(count: int) -> None:
        unhurt(lambda: [decisions.report("api", "allowed") for _ in range(count)] and None)

    render(11)  # no agent
    assert decisions.dropped == 11
    source = Intake(*room.bind(sockets.directory(place / "intake.sock")))
    render(4000)  # one that does not read: stopped, or busy
    assert decisions.dropped > 0
    came, reported = counted(source)
    render(1)
    came += counted(source)[0]
    reported = source.losses()["dropped"]
    assert (came + reported, decisions.dropped) == (11 + 4000 + 1, 0)
    source.close()  # it ends
    for name in ("intake.sock", "intake.seq.sock", "intake.stream.sock"):
        (place / name).unlink()
    render(5)
    assert decisions.dropped == 5
    again = Intake(*room.bind(sockets.directory(place / "intake.sock")))
    render(2)
    assert counted(again) == (2, 5)
    again.close()


def test_a_full_backlog_does_not_hold_it_up_either(place: Path, decisions: Any) -> None:
    listener = sockets.directory(place / "intake.seq.sock").listen("intake.seq.sock", 0o666, socket.SOCK_SEQPACKET, 1)
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for sock in waiting:
        sock.connect(str(place / "intake.seq.sock"))
    unhurt(lambda: [decisions.report("api", "allowed") for _ in range(100)] and None)
    assert decisions.dropped == 100
    for sock in (listener, *waiting):
        sock.close()


def python_limiter(_: Path) -> list[str]:
    return [sys.executable, str(ROOT / "deploy/examples/reanchor.py")]


def page_limiter(place: Path) -> list[str]:
    needs = (
        "import contextlib, json, socket, sys, threading, time\nclass Limiter:\n    lock, stamps = threading.Lock(),"
        " []\n"
    )
    (place / "follow.py").write_text(
        needs + page_block("clock-notices.md", "def follow") + "\nfollow(Limiter(), 'example', sys.argv[1])\n"
    )
    return [sys.executable, str(place / "follow.py")]


def go_limiter(place: Path) -> list[str]:
    environment = {**os.environ, "GOFLAGS": "", "CGO_ENABLED": "0"}
    subprocess.run(
        ["go", "build", "-o", str(place / "reanchor"), "."],
        cwd=ROOT / "deploy/examples/reanchor",
        env=environment,
        check=True,
    )
    return [str(place / "reanchor")]


@contextlib.contextmanager
def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    with listener.accept()[0] as connection:
        connection.settimeout(20)
        yield connection


def served(place: Path) -> socket.socket:
    listener = sockets.notices(place / "notices.sock")
    listener.settimeout(20)
    return listener


@pytest.mark.parametrize("language", [python_limiter, page_limiter, go_limiter])
def test_a_limiter_goes_on_with_the_next_process_that_reports(
    place: Path, language: Callable[[Path], list[str]]
) -> None:
    with subprocess.Popen(
        [*language(place), str(place / "notices.sock")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as program:
        with served(place) as listener:
            for number in (1, 2, 3):
                with accepted(listener) as connection:
                    connection.sendall(b'{"id": %d, "size_ns": -5}\n' % number)
                    assert json.loads(connection.recv(1000)) == {"ack": number, "limiter": "example"}
                    connection.sendall(b'{"id": 9, "si')  # dropped, in the middle of a line
        assert program.poll() is None
        program.kill()


def test_clock_watch_goes_on_until_nobody_listens(place: Path) -> None:
    command = [sys.executable, "-m", "agent", "clock", "watch", "-o", "csv"]
    environment = {**os.environ, "TICKSCOPE_RUN_DIR": str(place)}
    with (
        served(place) as listener,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watch,
    ):
        for number in (1, 2):
            with accepted(listener) as connection:
                connection.sendall(b'{"id": %d, "size_ns": -5}\n{"id": 9, "si' % number)
        listener.close()
        output, why = watch.communicate(timeout=20)
    assert watch.returncode == 4
    assert [line.rpartition(",")[2] for line in output.splitlines()] == ["id", "1", "2"]
    assert "connected anew" in why
    assert "no more notices at" in why
