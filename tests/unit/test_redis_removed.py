"""Counters of a Redis stream that XSETID sets: no entry is gone, as the ids show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.queues.redis_reading import Id, Stream
from agent.queues.redis_removed import RemovedEntries
from agent.queues.redis_rewound import DataHistory

#: Entries 1-0 to 100-0.
STREAM = Stream(b"s", 100, (1, 0), (100, 0), (100, 0), 100, (0, 0))
SET = 1_000_000


def counted(delivered: int, *polls: tuple[Stream, int]) -> int | None:
    """What has been removed after polls of (stream, lag)."""
    removed, at = RemovedEntries(), (delivered, 0)
    for stream, lag in polls:
        removed.see(stream, {}, at, lag)
    return removed.count


@pytest.mark.parametrize("delivered", [0, 40])
def test_a_counter_that_xsetid_sets_is_no_removal(delivered: int) -> None:
    lag = 100 - delivered
    set_to = replace(STREAM, added=SET)
    assert counted(delivered, (STREAM, lag), *[(set_to, lag)] * 3) == 0


@pytest.mark.parametrize("added", [100, SET])
@pytest.mark.parametrize("delivered", [0, 40])
@pytest.mark.parametrize(
    ("first", "deleted"),
    [((61, 0), (0, 0)), ((1, 0), (60, 0))],
    ids=["trimmed", "deleted"],
)
def test_entries_that_are_gone_still_count(first: Id, deleted: Id, delivered: int, added: int) -> None:
    lag = 100 - delivered
    after = replace(STREAM, length=40, first=first, max_deleted=deleted)
    polls = [(STREAM, lag), (replace(STREAM, added=added), lag), (replace(STREAM, added=added), lag)]
    polls += [(replace(after, added=added), 40)] * 3
    assert counted(delivered, *polls) == lag - 40


def test_a_stream_whose_counter_is_set_back_is_not_said_to_have_lost_entries() -> None:
    history = DataHistory()
    history.see(None, [STREAM], 1)
    history.see(None, [replace(STREAM, added=7)], 2)
    assert history.why(b"s") == "entries-added went from 100 to 7: it was set (XSETID), or entries are gone"
    history.see(None, [replace(STREAM, added=5, last=(90, 0), last_generated=(90, 0))], 3)
    assert history.why(b"s").startswith("at least 2 entries are gone")
