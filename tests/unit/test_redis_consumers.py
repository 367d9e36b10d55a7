"""Consumers of a Redis group with names of any length."""

from __future__ import annotations

from typing import Any

from agent.queues.redis_consumers import Consumers, held

SECOND = 10**9


def consumer(name: bytes, idle_ms: int, pending: int = 0) -> dict[str, Any]:
    return {"name": name, "idle": idle_ms, "pending": pending}


def test_consumers_whose_long_names_begin_alike_are_two() -> None:
    names = [b"x" * 700 + end for end in (b"a", b"b")]
    both = Consumers()
    both.longest([consumer(name, 0) for name in names], SECOND)
    idlest = []
    for first, second in ((5, 300), (300, 5)):  # each was active since the poll before
        found = both.longest([consumer(names[0], first), consumer(names[1], second)], 2 * SECOND)
        assert found is not None
        assert (found[1], len(found[0])) == (0.3, 256)
        idlest.append(found[0])
        both.longest([consumer(name, 0) for name in names], 3 * SECOND)
    assert idlest[0] != idlest[1]


def test_holders_with_long_names_have_their_numbers_and_are_told_apart() -> None:
    found = held([consumer(b"x" * 700 + b"%d" % n, 90_000, 9 - n) for n in range(3)])
    one, others = found.names.split(b", ", 1)
    assert (found.entries, len(one), one[-2:], others) == (24, 34, b" 9", b"and 2 more")
    apart = [held([consumer(b"x" * 700 + end, 90_000, 1)]).names for end in (b"a", b"b")]
    assert apart[0] != apart[1]
