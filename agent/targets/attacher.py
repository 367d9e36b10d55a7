"""The interface through which targets are opened, compared and attached."""

from __future__ import annotations

from typing import Protocol

from agent.kernel.steps import Pumped, Steps, Wait


class Attacher(Pumped, Protocol):
    """The privileged helper, or a test's replacement in its own process. Waits are resumed with OSError on failure.

    took_s: work time of the last answer; busy: an answer is due; silent: it does not answer; alive: its process exists.
    """

    took_s: float

    @property
    def alive(self) -> bool: ...

    @property
    def silent(self) -> bool: ...

    @property
    def busy(self) -> bool: ...

    def opening(self, pid: int, what: str) -> Wait: ...

    def digesting(self, fds: list[int]) -> Wait: ...

    def attaching(
        self, program_fd: int, file_fd: int, offsets: list[int], ret: bool = False, pid: int = 0
    ) -> Steps[list[int]]: ...

    def attach_raw_tracepoints(self, program_fds: list[int], names: list[str]) -> list[int]: ...
