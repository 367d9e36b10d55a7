"""The process that reads the settings again, where it hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from agent.config import Config, InForce, resolve
from agent.queues.poller_process import BrokerPoller
from agent.service import reload
from tests.patience import PATIENCE


class Undying(subprocess.Popen[bytes]):
    """Who does not die of being killed, as in an uninterruptible sleep."""

    def __init__(self, command: list[str], **more: object) -> None:
        super().__init__(["sleep", "60"], **more)  # type: ignore[call-overload]

    def send_signal(self, sig: int) -> None:
        pass


class _Loop:
    """What of the loop is used: who is readable."""

    def __init__(self) -> None:
        self.selector, self.readable = self, list[object]()

    def on_readable(self, what: object, _: object) -> None:
        self.readable.append(what)

    def unregister(self, what: object) -> None:
        self.readable.remove(what)


def test_one_that_does_not_die_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.posix.supervisor.subprocess.Popen", Undying)
    loop = _Loop()
    one = reload.Reload({}, InForce(Config(), {}), loop)  # type: ignore[arg-type]
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
