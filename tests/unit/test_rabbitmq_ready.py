"""Bounds of ready messages against a queue of the test's own, with statistics at any time between polls."""

from __future__ import annotations

import random

import pytest

from agent.queues.rabbitmq_ready import ChannelTotals, ReadyBounds

S = 1_000_000_000


class _Queue:
    def __init__(self) -> None:
        self.bounds = ReadyBounds()
        self.published = self.delivered = self.uncounted = 0
        self._t_ns, self._statistic = 0, None

    @property
    def ready(self) -> int:
        return self.published - self.delivered + self.uncounted

    def second(self, steps: list[tuple[int, int]], statistic_after: int | None = None) -> tuple[int, int] | None:
        """(published, delivered) in parts of a second. statistic_after: so many of them."""
        statistic = self.ready if statistic_after == 0 else None
        for number, (published, delivered) in enumerate(steps, 1):
            self.published += published
            self.delivered += min(delivered, self.ready)
            if number == statistic_after:
                statistic = self.ready
        self._t_ns += S
        self.bounds.poll(ChannelTotals(self.published, self.delivered), statistic, self._t_ns)
        return self.bounds.now()


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_is_within_the_bounds_and_they_come_closer(seed: int) -> None:
    rng, queue, widths = random.Random(seed), _Queue(), []
    for second in range(120):
        steps = [(rng.randrange(20), rng.randrange(19)) for _ in range(10)]
        found = queue.second(steps, rng.randrange(11) if second % 5 == 0 else None)
        if found is not None:
            assert found[0] <= queue.ready <= found[1]
            widths.append(found[1] - found[0])
    assert len(widths) > 80
    assert widths[-1] < 300 < 10_000 < queue.published  # about one poll's messages, in and out


def test_an_idle_queue_is_known_exactly_after_a_last_statistic() -> None:
    queue = _Queue()
    for second in range(12):
        queue.second([(7, 3)] * 10, 5 if second % 5 == 0 else None)
    queue.second([(7, 3)] * 10, 10)
    found = [queue.second([]) for _ in range(8)]
    assert found[0] is not None and found[0][0] < queue.ready < found[0][1]
    assert found[-1] == (queue.ready, queue.ready)
    assert queue.second([(5, 0)]) == (queue.ready, queue.ready)


def test_messages_that_no_channel_counts_leave_no_bounds_until_statistics_agree() -> None:
    queue = _Queue()
    for second in range(20):
        assert second < 10 or queue.bounds.now() is not None
        queue.second([(10, 9)] * 10, 5 if second % 2 == 0 else None)
    queue.uncounted = 1000
    found = [queue.second([(10, 9)] * 10, 5 if second % 2 == 0 else None) for second in range(8)]
    assert found[2] is None
    assert found[-1] is not None and found[-1][0] <= queue.ready <= found[-1][1]


def test_counts_that_are_lost_leave_no_bounds() -> None:
    queue = _Queue()
    for _ in range(10):
        queue.second([(10, 9)], 1)
    assert queue.bounds.now() is not None
    queue.bounds.lost(ChannelTotals(queue.published, queue.delivered), 10 * S)
    assert queue.second([(10, 9)]) is None
