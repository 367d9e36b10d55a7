"""What opens, compares and attaches for those who look for something to probe."""

from __future__ import annotations

from typing import Protocol

from agent.kernel.steps import Pumped, Steps, Wait


class Attacher(Pumped, Protocol):
    """The privileged helper, or a test's stand-in within its own process. Waits are resumed with OSError where it
    fails.

    took_s: how long it worked for the last answer; busy: an answer is due; silent: it does not answer; alive: it is not
    gone.
    """

    took_s: float

    @property
    def silent(self) -> bool: ...
    @property
    def alive(self) -> bool: ...

    @property
    def busy(self) -> bool: ...

    def opening(self, pid: int, what: str) -> Wait: ...

    def digesting(self, fds: list[int]) -> Wait: ...

    def attaching(
        self, program_fd: int, file_fd: int, offsets: list[int], ret: bool = False, pid: int = 0
    ) -> Steps[list[int]]: ...

    def attach_raw_tracepoint(self, program_fd: int, name: str) -> int: ...
