"""The agent's signals, handled in the loop: end, reload the settings (SIGHUP), redraw (SIGWINCH)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

from agent.log import NOTICE, log_message

ENDING = (signal.SIGINT, signal.SIGTERM)


#: Signals that ended the agent, in order.
_came: list[int] = []


class EventLoop(Protocol):
    """The part of agent.service.loop.Loop that is used here."""

    stopping: bool

    def on_readable(self, sock: socket.socket, callback: Callable[[], None]) -> None: ...


class Interrupted(BaseException):
    """SIGINT before the agent was ready. Not KeyboardInterrupt: after that passed through an exec(), Python kills
    itself at its end.
    """


def hold() -> None:
    """Just before the agent's first line, amid imports: ignores SIGHUP, for its forked processes too, and blocks
    SIGINT.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def begin() -> None:
    """From now on SIGINT raises Interrupted, until ``Signals`` takes it over. If the exception is swallowed, it ends
    the agent once it is ready.
    """

    def interrupted(number: int, _: object) -> None:
        _came.append(number)
        raise Interrupted

    signal.signal(signal.SIGINT, interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def sheltered() -> Iterator[None]:
    """Blocks SIGINT around the start of a child that will ignore it, because the child does not ignore it from its
    first instruction on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Signals:
    """Handles the signals. reload: for SIGHUP. draw: for SIGWINCH, with CLOCK_BOOTTIME ns. ``came``: those that ended
    the agent, in order.

    A SIGHUP because its terminal was closed ends the agent, as Ctrl-C does. Any other SIGHUP reloads the settings.
    """

    def __init__(self, loop: EventLoop, reload: Callable[[], None], draw: Callable[[int], None] | None) -> None:
        self._loop, self._reload, self._draw = loop, reload, draw
        self._terminals = [fd for fd in range(3) if os.isatty(fd)]
        self._waiting: list[int] = []
        self.came = _came
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        loop.on_readable(self._woken, self._take)
        signal.set_wakeup_fd(
            self._wake.fileno(), warn_on_full_buffer=False
        )  # so that the loop's select returns at once
        for number in (*ENDING, signal.SIGHUP, *([signal.SIGWINCH] if draw else [])):
            signal.signal(number, self._note)
        loop.stopping = bool(self.came)

    def _note(self, number: int, _: object) -> None:
        if number in ENDING:
            self.came.append(number)
            self._loop.stopping = True
        else:
            self._waiting.append(number)

    def _take(self) -> None:
        from agent.common.clocks import boot_ns

        self._woken.recv(4096)
        waiting, self._waiting = set(self._waiting), []
        if signal.SIGWINCH in waiting and self._draw is not None:
            self._draw(boot_ns())
        if signal.SIGHUP in waiting:
            if self._hung_up():
                log_message("tickscope: the terminal was closed", NOTICE)
                self.came.append(signal.SIGHUP)
                self._loop.stopping = True
            else:
                self._reload()

    def _hung_up(self) -> bool:
        poll = select.poll()
        for fd in self._terminals:
            poll.register(fd, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0)) if self._terminals else False
