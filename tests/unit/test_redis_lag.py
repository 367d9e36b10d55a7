"""When the lag that a Redis server counts is no longer taken without counting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.queues.redis_lag import VERIFY_ENTRIES, Lag
from agent.queues.redis_reading import Stream

LENGTH = 4 * VERIFY_ENTRIES
STREAM = Stream(b"s", LENGTH, (1, 0), (LENGTH, 0), (LENGTH, 0), LENGTH, (0, 0))


def see(lag: Lag, delivered: int, read: int, more: int = 0) -> None:
    stream = replace(STREAM, added=LENGTH + more)
    info = {"lag": LENGTH + more - read, "entries-read": read}
    lag.see(info, (delivered, 0), stream, 1)
    lag.judge(info, stream)


@pytest.mark.parametrize(
    ("delivered", "read", "more", "exact"),
    [
        (100, 100, 0, True),
        (107, 107, 0, True),
        (100, 5000, 0, False),  # XGROUP SETID ... ENTRIESREAD
        (207, 207, 50, False),  # XSETID ... ENTRIESADDED
    ],
)
def test_a_counter_that_is_set_is_doubted(delivered: int, read: int, more: int, exact: bool) -> None:
    lag = Lag()
    see(lag, 100, 100)
    lag._verify(True)  # as once the entries are counted
    lag.counting = None
    see(lag, delivered, read, more)
    assert (lag.reason == "") is exact
    assert (lag.at_least or lag.value or 0) <= LENGTH - delivered
