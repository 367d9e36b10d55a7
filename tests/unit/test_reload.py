"""The process that reads the settings again, where it hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.config import Applier, Config, InForce, resolve
from agent.queues.poller_process import BrokerPoller
from agent.service import reload
from tests.patience import PATIENCE, until


class Undying(subprocess.Popen[bytes]):
    """Who does not die of being killed, as in an uninterruptible sleep."""

    def __init__(self, command: list[str], **more: object) -> None:
        super().__init__(["sleep", "60"], **more)  # type: ignore[call-overload]

    def send_signal(self, sig: int) -> None:
        pass


class _Loop:
    """What of the loop is used: who is readable."""

    def __init__(self) -> None:
        self.selector, self.readable = self, dict[socket.socket, Callable[[], None]]()

    def on_readable(self, what: socket.socket, callback: Callable[[], None]) -> None:
        self.readable[what] = callback

    def unregister(self, what: socket.socket) -> None:
        del self.readable[what]


def not_opened(done: Callable[[None, Exception], None]) -> None:
    """A helper that does not open the file."""
    done(None, PermissionError())


def test_one_that_does_not_die_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.posix.supervisor.subprocess.Popen", Undying)
    loop = _Loop()
    one = reload.Reload({}, InForce(Config(), {}), loop, not_opened)  # type: ignore[arg-type]
    begin = time.monotonic()
    one.start()
    one.start()
    try:
        assert time.monotonic() - begin < 5 * PATIENCE
        assert len(loop.readable) == len(one._child._ending) == 1
    finally:
        one._end()
        for child, _ in one._child._ending:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    one._end()
    assert one._child._ending == []


def test_the_opened_file_is_read_and_what_needs_a_restart_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its name, which the process may be unable to open. A receiver's URL is in no line."""
    file, folder = tmp_path / "t.yaml", tmp_path / "elsewhere"
    file.write_text("log_format: json\nnotify: {slack: {url: 'https://hooks.example/hunter2'}, journal: alarm}\n")
    loop, used = _Loop(), list[Any]()
    in_force = InForce(Config(), {"log_format": Applier(used.append, ("service",))})
    source = {"file": str(folder / "t.yaml"), "chosen": True, "flags": {}}
    one = reload.Reload(source, in_force, loop, lambda done: done(os.open(file, os.O_RDONLY), None))  # type: ignore[arg-type]
    before = len(os.listdir("/proc/self/fd"))
    one.start()
    while loop.readable:
        ((ours, callback),) = loop.readable.items()
        ours.setblocking(True)
        callback()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    said = capfd.readouterr().err
    assert f"read {source['file']} again: log_format is now 'json'; needs a restart: notify" in said
    assert "hunter2" not in said
    assert [section.log_format for section in used] == ["json"]


@pytest.mark.parametrize("left_out", [False, True])
def test_what_was_left_out_starts_no_process(left_out: bool) -> None:
    brokers = BrokerPoller("redis", (), 1.0)
    loop: Any = SimpleNamespace(sources=[] if left_out else [brokers])
    other: Any = None
    try:
        apply = reload.appliers(loop, other, other, [brokers], None)
        apply["brokers"].use(resolve({"redis": ("redis://127.0.0.1:1",)}, {}).queues)
        assert len(brokers.processes()) == (not left_out)
    finally:
        brokers.close()
