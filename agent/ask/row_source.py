"""The interface of what has rows to query: the store of this host, a recording, the stores of several hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from agent.ask.question import Question, Spread
    from agent.ask.window import Bound, Window
    from agent.clock.history import History


class Result(NamedTuple):
    """Rows of a query as tuples, in the order of ``columns``."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class RowSource(Protocol):
    """Rows at one moment, and the window in which they are asked for. A context manager. Its methods raise AgentError:
    exit 2 where the question is wrong (a condition that cannot be read, a column that is not there), 4 where rows
    cannot be read any more.
    """

    @property
    def window(self) -> Window: ...

    @property
    def boots(self) -> list[str]:
        """Boot ids, oldest first."""

    def bound(self, text: str) -> Bound:
        """A time in words (agent/ask/window.py); those that count back do so from now, or from where the rows end for
        good. Raises AgentError (exit 2).
        """

    def refresh(self) -> set[str]:
        """Takes the rows that were added since, and moves a window that counts back from now. Returns the tables with
        new rows. Raises AgentError (exit 4) if rows cannot be read any more.
        """

    @property
    def notes(self) -> list[str]:
        """What its answers may lack, in words."""

    @property
    def written_since_ns(self) -> int | None:
        """CLOCK_BOOTTIME at which the process that adds rows was started, None where nobody adds any."""

    def last_ns(self, boot_id: str) -> int | None:
        """CLOCK_BOOTTIME of the newest row of a boot, None if it has none. Reads no rows."""

    @property
    def written_by(self) -> str:
        """The process that wrote the rows, as text: where it ends, its rows end."""

    def rows(self, question: Question) -> list[dict[str, Any]]:
        """One dictionary a row or group; unknown values are None."""

    def batches(self, question: Question) -> Iterator[list[dict[str, Any]]]:
        """The same rows in order of time, or the newest ``question.limit`` of them, some hundred at once: memory does
        not grow with their number. For rows, not groups.
        """

    def integers(self, question: Question) -> dict[str, np.ndarray]:
        """Columns of integers, int64, shape (n,), NULL_I64 for unknown: many rows in little memory."""

    def table(self, question: Question) -> np.ndarray:
        """Rows as the table itself holds them, with the question's columns: structured, shape (n,), unknown values as
        its columns say.
        """

    def tables(self, question: Question) -> Iterator[np.ndarray]:
        """The same in order of time, a few thousand rows at once, so memory does not grow with the number of rows."""

    def spread(self, question: Question, *, exact: bool = False) -> Spread:
        """How the measure of the question's table is spread in each of its groups; columns, values, order and limit are
        not looked at.
        exact: the values of rows, where the table has rows of single values.
        """

    def run(self, sql: str) -> Result:
        """Any SQL that reads; every table of the source is a view. Raises AgentError (exit 2) also where it would
        write.
        """

    def stream(self, sql: str) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
        """The same, as columns and batches of rows; nothing else may be asked until they are read."""

    def gaps(self) -> list[dict[str, Any]]:
        """Rows of ``loss`` whose interval overlaps the window, with ``from_wall_ns`` and ``to_wall_ns``."""

    def history(self, boot_id: str) -> History:
        """The offset history of a boot; empty where there is none."""

    def wall(self, boot_id: str, t_ns: np.ndarray) -> np.ndarray:
        """Wall times (Unix ns) of CLOCK_BOOTTIME ns of that boot, shape (n,); NULL_I64 where not known."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def offset_at(source: RowSource, boot_id: str, t_ns: int) -> int | None:
    """Wall time less CLOCK_BOOTTIME at that time of a boot, ns; None if it is not known."""
    import numpy as np

    from agent.columns import NULL_I64

    wall = int(source.wall(boot_id, np.array([t_ns], np.int64))[0])
    return None if wall == NULL_I64 else wall - t_ns


def gap_bounds(gap: dict[str, Any]) -> tuple[int, int]:
    """A loss row's interval, CLOCK_BOOTTIME ns; where an end is not known, the other, or when it was reported."""
    begin, end = (
        next(gap[name] for name in names if gap[name] is not None)
        for names in (("from_ns", "to_ns", "t_ns"), ("to_ns", "t_ns"))
    )
    return begin, end
