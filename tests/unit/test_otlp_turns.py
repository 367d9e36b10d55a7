"""Who waits for whom in the receiver: a small request for no large one, and whoever floods it with frames for
himself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from agent.receiver.grpc_server import GrpcServer
from agent.receiver.header_blocks import HeaderBlocks
from agent.receiver.link import AgentLink
from agent.receiver.senders import OtlpSender
from agent.receiver.taking import SMALL_BYTES, Desk
from agent.receiver.turns import FRAMES_BURST, FRAMES_PER_S, FramePace
from agent.receiver.wire import COUNTS
from tests.unit.otlp_pieces import mapper, spans


def test_a_pace_is_a_users_own_and_is_made_up_for_by_waiting() -> None:
    pace = FramePace()
    assert pace.wait_s(1, FRAMES_BURST, 100.0) == 0
    assert pace.wait_s(1, FRAMES_PER_S // 2, 100.0) == pytest.approx(0.5)
    assert pace.wait_s(1, FRAMES_PER_S, 100.0) == pytest.approx(1.5)  # on another connection of his
    assert pace.wait_s(2, FRAMES_BURST, 100.0) == 0
    assert pace.wait_s(1, 0, 101.5) == 0
    assert pace.wait_s(1, FRAMES_BURST, 10_000.0) == 0  # no more than at once is saved up
    assert pace.wait_s(1, 4, 10_000.0) > 0


@pytest.mark.parametrize("cut", [1, 10, 4096])
def test_frames_are_counted_however_they_come(cut: int) -> None:
    data = (bytes(3) + b"\6\0\0\0\0\0") * 100 + b"\0\x10\0\0\0\0\0\0\1" + bytes(4096)
    blocks = HeaderBlocks()
    assert all(blocks.fit(data[at : at + cut]) for at in range(0, len(data), cut))
    assert blocks.frames == 101


@contextlib.asynccontextmanager
async def _desk(known: dict[int, bool]) -> AsyncIterator[tuple[Desk, list[OtlpSender]]]:
    """A desk whose agent takes everything, and a connection of each user; known: whether the agent knows whose it
    is.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = socket.socketpair()
    with ours, theirs, one, other:
        ours.setblocking(False)
        link, loop = AgentLink(theirs, lambda _: None), asyncio.get_running_loop()
        loop.add_reader(ours, ours.recv, 1 << 20)
        senders = [OtlpSender(number, one, uid) for number, uid in enumerate(known, 1)]
        for sender in senders:
            if known[sender.uid]:
                sender.known.set()
        yield Desk(mapper(), link, Counter(dict.fromkeys(COUNTS, 0))), senders
        loop.remove_reader(ours)
        loop.remove_reader(theirs)


async def _in_what_order() -> list[str]:
    done: list[str] = []
    async with _desk({65534: True}) as (desk, (sender,)):

        async def take(name: str, data: bytes) -> None:
            assert not (await desk.take(sender, "traces", data)).why
            done.append(name)

        given = {"rate_limiting.result": "refused"}
        large, small = spans(*[{"http.route": "/"}] * 9_000), spans(given)
        assert len(large) > SMALL_BYTES > len(small)
        await asyncio.gather(take("large", large), take("large", large), take("small", small))
    return done


def test_a_small_request_waits_for_no_large_one() -> None:
    assert asyncio.run(_in_what_order()) == ["small", "large", "large"]


async def _known_and_not() -> list[int]:
    done: list[int] = []
    async with _desk({65533: False, 65534: True}) as (desk, senders):

        async def take(sender: OtlpSender) -> None:
            assert not (await desk.take(sender, "traces", spans({"rate_limiting.result": "refused"}))).why
            done.append(sender.uid)

        await asyncio.gather(*map(take, senders))
    return done


def test_nobody_waits_until_the_agent_knows_another_connection() -> None:
    assert asyncio.run(_known_and_not()) == [65534, 65533]


FRAME = bytes(3) + b"\xee\0\0\0\0\0"  # of a kind that there is not


async def _passed(server: GrpcServer, uid: int, frames: int, within_s: float) -> int:
    """How many bytes come through on a new connection, on which a client sends this and ends."""
    ours, theirs = socket.socketpair()
    reader = asyncio.StreamReader()
    reader.feed_data(FRAME * frames)
    reader.feed_eof()
    _, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server._pass_on(OtlpSender(1, theirs, uid), reader, writer), within_s)
        theirs.setblocking(False)
        try:
            return len(theirs.recv(1 << 20))
        except BlockingIOError:
            return 0
        finally:
            writer.transport.abort()


async def _on_new_connections() -> None:
    async with _desk({65534: True}) as (desk, _):
        server = GrpcServer(desk)
        server._pace.wait_s(65534, 10 * FRAMES_BURST, time.monotonic())
        assert await _passed(server, 65534, 1, 0.2) == 0
        assert desk.counts["held_up"] == 1
        assert await _passed(server, 65533, 1, 10) == len(FRAME)


def test_who_connects_anew_is_held_up_all_the_same() -> None:
    asyncio.run(_on_new_connections())


async def _left_after_an_end() -> float:
    async with _desk({65534: True}) as (desk, _):
        server = GrpcServer(desk)
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        writer.transport.abort()
        await asyncio.sleep(0)
        reader = asyncio.StreamReader()
        reader.feed_data(FRAME * 1000)
        with theirs:
            await server._pass_on(OtlpSender(1, theirs, 65534), reader, writer)
        return server._pace._left[65534][0]


def test_frames_count_though_the_connection_ends_with_them() -> None:
    assert asyncio.run(_left_after_an_end()) == pytest.approx(FRAMES_BURST - 1000, abs=500)
