"""A hook and the connections that it gets its notices by: real processes and sockets, no clock is stepped."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock import hooks
from agent.clock.settings import HookSettings
from tests.lab import sockets

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="tickscope-hooks-") as made:
        Path(made).chmod(0o777)
        yield Path(made) / "run"


def listening(place: Path) -> socket.socket:
    place.mkdir(mode=0o755)
    listener = sockets.notices(place / "notices.sock")
    listener.settimeout(20)
    return listener


@contextlib.contextmanager
def started(place: Path) -> Iterator[hooks.HookProcess]:
    run_fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    hook = hooks.start(HookSettings(exec=("/bin/true",)), run_fd, NOBODY, NOBODY)
    os.close(run_fd)
    assert hook is not None
    hook.reports.settimeout(20)
    yield hook
    hook.close()


def render(listener: socket.socket, *ids: int) -> None:
    """A connection that brings these notices and ends, in the middle of one more."""
    with listener.accept()[0] as connection:
        connection.sendall(b"".join(b'{"v":1,"id":%d}\n' % number for number in ids) + b'{"v":1,"i')


def counts(hook: hooks.HookProcess, delivered: int) -> dict[str, object]:
    while True:
        output: dict[str, object] = json.loads(hook.reports.recv(1 << 16))
        if output["delivered"] == delivered:
            return output


def test_a_hook_goes_on_with_the_next_watch_and_counts_what_it_missed(place: Path) -> None:
    with listening(place) as listener, started(place) as hook:
        render(listener, 1)
        render(listener, 2)  # nothing is missing: it was only started again
        assert counts(hook, 2)["dropped"] == 0
        render(listener, 6)
        assert counts(hook, 3)["dropped"] == 3


def test_a_hook_that_is_refused_again_and_again_outlives_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_AGAIN_S", 0.0)
    with listening(place) as listener, started(place) as hook:
        for _ in range(1500):
            listener.accept()[0].close()
        render(listener, 1)
        assert counts(hook, 1)["dropped"] == 0


def test_whatever_is_raised_fails_the_notice_and_not_the_hook(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(_: bytes) -> None:
        raise UnicodeError("odd")

    monkeypatch.setattr(hooks, "execute", lambda *_: odd)
    with listening(place) as listener, started(place) as hook:
        render(listener, 1)
        assert json.loads(hook.reports.recv(1 << 16)) == {
            "delivered": 0,
            "failed": 1,
            "dropped": 0,
            "error": "UnicodeError: odd",
        }
        render(listener, 2)
        assert json.loads(hook.reports.recv(1 << 16))["failed"] == 2
