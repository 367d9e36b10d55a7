"""Streams of a Redis server with entries that are too large for one reply: how many commands the others cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from agent.common.framing import MAX_BYTES
from agent.common.resp import RedisUrl, Reply, ReplyTooLarge
from agent.queues.brokers.redis import NOT_READ, TOO_LARGE, RedisStreams
from agent.queues.redis_reply_size import ReplySize
from agent.queues.redis_rights import Command

S = 10**9
MANY = 1000
Sizes = Mapping[int, int]


class Streams(RedisStreams):
    """A server with ``MANY`` streams. sizes: bytes of the entries in ``XINFO STREAM``, by number of the stream; usual:
    of the others. commands, refused: in the last poll.
    """

    def __init__(self, sizes: Sizes, usual: int = 200) -> None:
        super().__init__(RedisUrl.parse("redis://127.0.0.1:1/0"))
        self.names = [b"s%d" % at for at in range(MANY)]
        self._bytes = {name: sizes.get(at, usual) for at, name in enumerate(self.names)}

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        self.commands += 1
        sizes = [self._bytes[name] for _, part, name in commands if part == "STREAM" and isinstance(name, bytes)]
        if sum(sizes) > MAX_BYTES:
            self.refused += 1
            raise ReplyTooLarge("refused an answer of more than 8 MiB")
        return [[name] for _, _, name in commands]

    def ask(self, second: int) -> list[str]:
        """Of each stream, why it was not read; empty for those that were."""
        self._now_ns, self.commands, self.refused = second * S, 0, 0
        replies = self._about(self.names)
        assert len(replies) == 2 * MANY
        both = list(zip(replies[::2], replies[1::2], strict=True))
        for name, (about, groups) in zip(self.names, both, strict=True):
            assert about is groups or about == groups == [name]
        return ["" if isinstance(about, list) else str(about) for about, _ in both]


def test_one_stream_that_is_too_large_costs_the_others_few_commands() -> None:
    server = Streams({517: 9 << 20})
    for second in range(200):
        why = server.ask(second)
        assert {at: one for at, one in enumerate(why) if one} == {517: TOO_LARGE}
        assert server.commands <= (40 if second == 0 else 2)
        assert server.refused <= (6 if second == 0 else second % 60 == 0)


def test_many_streams_that_are_too_large_are_found_in_some_polls_and_tried_again_in_turn() -> None:
    large = range(3, MANY, 20)
    server = Streams(dict.fromkeys(large, 9 << 20))
    for second in range(60):
        why = server.ask(second)
        assert server.refused <= 8 and server.commands <= 150
        assert {one for one in why if one} <= {TOO_LARGE, NOT_READ}
    known = [at for at, one in enumerate(why) if one]
    assert known == [*large] and set(filter(None, why)) == {TOO_LARGE}
    for second in range(60, 200):
        why = server.ask(second)
        assert [at for at, one in enumerate(why) if one] == known
        assert server.refused <= 2 and server.commands <= 3


def test_a_stream_that_was_trimmed_is_read_within_a_minute() -> None:
    server = Streams({517: 9 << 20})
    server.ask(0)
    server._bytes[b"s517"] = 200
    assert not any(server.ask(61)) and server.commands <= 3
    assert not any(server.ask(62)) and server.commands == 1


def test_streams_that_are_all_rather_large_seldom_have_a_refused_reply() -> None:
    server = Streams({}, usual=200_000)
    refused = commands = 0
    for second in range(100):
        server.ask(second)
        refused, commands = refused + server.refused, commands + server.commands
    assert not any(server.ask(100))
    assert refused <= commands / 32


@pytest.mark.parametrize("most", [1, 7, 1024])
def test_a_number_is_never_below_one_or_above_the_most(most: int) -> None:
    size = ReplySize(most)
    for turn in range(1000):
        size.refused(size.number) if turn % 3 and size.number > 1 else size.received()
        assert 1 <= size.number <= most
    for _ in range(1000):
        size.received()
    assert size.is_whole
