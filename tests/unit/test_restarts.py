"""When a process that ended is started again: soon, later and later, not for ever."""

from __future__ import annotations

from agent.posix.restarts import IN_A_ROW, STEADY_S, Restarts


def waits(restarts: Restarts, now_s: float) -> float:
    """How long after an end now the next one may be started, to a tenth of a second."""
    return next(i / 10 for i in range(10_000) if restarts.due(now_s + i / 10))


def test_each_wait_is_longer_and_after_so_many_in_a_row_it_is_given_up() -> None:
    restarts, now, seen = Restarts(), 1000.0, []
    for _ in range(IN_A_ROW):
        restarts.ended(now, "SIGKILL")
        seen.append(waits(restarts, now))
        now += seen[-1]
        restarts.started(now)
        now += 1
    assert seen == [0.5, 1, 2, 4, 8]
    assert not restarts.given_up
    restarts.ended(now, "SIGKILL")
    assert restarts.given_up
    assert not restarts.due(now + 10**6)
    assert restarts.count == IN_A_ROW


def test_one_that_cannot_be_started_is_given_up_too() -> None:
    restarts, now = Restarts(), 1000.0
    for _ in range(IN_A_ROW + 1):
        restarts.ended(now, "cannot be started")
        now += 10
    assert restarts.given_up
    assert restarts.count == 0


def test_one_that_lived_long_enough_begins_anew() -> None:
    restarts, now = Restarts(), 1000.0
    for _ in range(10 * IN_A_ROW):
        restarts.ended(now, "SIGTERM")
        assert waits(restarts, now) == 0.5
        now += 0.5
        restarts.started(now)
        now += STEADY_S
    assert not restarts.given_up
