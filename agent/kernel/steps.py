"""Runs work in steps on the agent's one thread: a generator yields what it waits for, and continues with the answer.
Nothing blocks.

A wait is a function that takes ``done`` and calls it once, now or later, with (value, None) or (None, exception).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

Done = Callable[[Any, "Exception | None"], None]
Wait = Callable[[Done], None]
T = TypeVar("T")
Steps = Generator[Wait, Any, T]


class BlockedError(TimeoutError):
    """The request was not sent, because another one takes too long."""


class Pumped(Protocol):
    """A source of answers that the loop takes: ``pump`` resumes waits that are answered or timed out."""

    def fds(self) -> list[int]: ...

    def pump(self) -> None: ...


def run(steps: Steps[Any], done: Done) -> None:
    """Runs a generator from wait to wait; ``done`` gets its result or exception.

    Immediate answers are taken in a loop, so that they need no deeper stack.
    """
    answers: list[tuple[Any, Exception | None]] = [(None, None)]
    running = False

    def resume(value: Any, error: Exception | None) -> None:
        answers.append((value, error))
        if not running:
            go_on()

    def go_on() -> None:
        nonlocal running
        running = True
        try:
            while answers:
                value, error = answers.pop()
                wait = steps.throw(error) if error is not None else steps.send(value)
                wait(resume)
        except StopIteration as end:
            done(end.value, None)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            done(None, error)
        finally:
            running = False

    go_on()


def at_once(work: Callable[[], Any]) -> Wait:
    """A wait that completes at once, with a value or the OSError raised."""

    def wait(done: Done) -> None:
        try:
            value = work()
        except OSError as error:
            done(None, error)
        else:
            done(value, None)

    return wait


def pump_until(finished: Callable[[], bool], pumped: Iterable[Pumped], limit_s: float) -> bool:
    """Pumps, asleep between answers, until ``finished``; False after a timeout. For start and end, not for the loop."""
    end = time.monotonic() + limit_s
    parts = list(pumped)
    waiting = select.poll()
    for fd in {fd for part in parts for fd in part.fds()}:
        waiting.register(fd, select.POLLIN)
    while not finished():
        if time.monotonic() > end:
            return False
        waiting.poll(10)
        for part in parts:
            part.pump()
    return True
