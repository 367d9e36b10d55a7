"""Who waits for whom in the receiver: a small request for no large one, and whoever floods it with frames for himself."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import pytest

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


async def _in_what_order() -> list[str]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = socket.socketpair()
    done: list[str] = []
    with ours, theirs, one, other:
        ours.setblocking(False)
        link = AgentLink(theirs, lambda _: None)
        asyncio.get_running_loop().add_reader(ours, ours.recv, 1 << 20)
        desk, sender = Desk(mapper(), link, Counter(dict.fromkeys(COUNTS, 0))), OtlpSender(1, one, 65534)
        sender.known.set()

        async def take(name: str, data: bytes) -> None:
            assert not (await desk.take(sender, "traces", data)).why
            done.append(name)

        given = {"rate_limiting.result": "refused"}
        large, small = spans(*[{"http.route": "/"}] * 9_000), spans(given)
        assert len(large) > SMALL_BYTES > len(small)
        await asyncio.gather(take("large", large), take("large", large), take("small", small))
        asyncio.get_running_loop().remove_reader(ours)
        asyncio.get_running_loop().remove_reader(theirs)
    return done


def test_a_small_request_waits_for_no_large_one() -> None:
    assert asyncio.run(_in_what_order()) == ["small", "large", "large"]
