"""What the loop and ``status`` ask of their parts: sources, sinks, filters, and what some of them have beside.

Source, Sink and Filter are what all must have. The others are optional: a part that has one derives from
it, since a method that only happens to be called alike means something else. Everything is called on the agent's one
thread and must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.common.faults import Faults


class Closing(Protocol):
    """Something that ends with the loop."""

    name: str

    def close(self) -> None: ...


class Source(Closing, Protocol):
    """Produces batches; knows nothing of what follows."""

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """What has arrived since the last call; ``now_ns`` is CLOCK_BOOTTIME. Called once a second; more often for
        sources that are ``Readable``, ``Pending`` or ``Due``.
        """
        ...


class Sink(Closing, Protocol):
    """Takes batches; must count what it drops."""

    def offer(self, batch: Batch) -> None: ...

    def losses(self) -> dict[str, int]:
        """Records dropped so far, by reason."""
        ...


class Filter(Protocol):
    """Gets each batch before everything else, and returns what goes on."""

    name: str

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]: ...


class Readable(ABC):
    """A source with descriptors for which the loop does not wait until the next beat."""

    @abstractmethod
    def fds(self) -> list[int]:
        """Asked once, when the loop takes the source."""


class Finishing(ABC):
    """A source with rows at the end."""

    @abstractmethod
    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """In the place of the last ``drain``. wait: sleeps so many seconds."""


class Due(ABC):
    """A source that wants to be drained at a time of its own; its rows go on at once."""

    @property
    @abstractmethod
    def due_ns(self) -> int:
        """CLOCK_BOOTTIME; 0 for no such time."""


class Pending(ABC):
    """A source that may have something more often than once a second: drained at each beat at which ``pending``, and
    once a second like all others.
    """

    name: str

    @abstractmethod
    def pending(self, now_ns: int) -> bool:
        """Asked at each beat, after the sources before it were drained; cheap. now_ns: CLOCK_BOOTTIME."""


class Waking(ABC):
    """A source that does less between two beats than a whole drain."""

    @abstractmethod
    def woken(self, now_ns: int) -> Iterable[Batch]:
        """In the place of ``drain`` between two beats, for a readable descriptor or at ``due_ns``."""


class Stating(ABC):
    """A part with words of its own in ``status``."""

    name: str

    @abstractmethod
    def state(self) -> Any:
        """What can be written as JSON."""


class Failing(ABC):
    """A source that polls servers, which may fail without a fault of its own."""

    @abstractmethod
    def failures(self) -> Mapping[str, str]:
        """By name of what failed last because of an error of our own: the error, as text."""


class Parted(ABC):
    """A source with parts that fail independently."""

    faults: Faults


class Owning(ABC):
    """A part with processes of its own."""

    @abstractmethod
    def processes(self) -> list[dict[str, Any]]:
        """``pid`` and ``role`` of each that runs."""
