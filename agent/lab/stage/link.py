"""How the laboratory's link treats packets: delay, jitter, loss, cut and reset, all of them or those of one port. Driven by settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent.lab.stage.wire import ACK, Packet, Sent

RST = 0x04


class Treatment:
    """settings: a mapping that changes while it is used: ``delay_s``, ``jitter_s`` (one way), ``loss`` (share), ``cut``, ``reset`` (bool), ``port``
    and ``protocol`` (what they mean: 0 all; the IP number), ``usual_s`` (one way, always)."""

    def __init__(self, settings: Mapping[str, Any], seed: int) -> None:
        self._settings, self._random = settings, random.Random(seed)

    def __call__(self, packet: Packet) -> Sequence[Sent]:
        s = self._settings
        usual = (s["usual_s"], packet.data, packet.to_right)
        if (s["port"] and s["port"] not in packet.ports) or (s["protocol"] and s["protocol"] != packet.protocol):
            return (usual,)
        if s["reset"] and (reset := reset_of(packet.data)):
            return (usual, (0.0, reset, not packet.to_right))
        if s["cut"] or (s["loss"] and self._random.random() < s["loss"]):
            return ()
        return ((s["usual_s"] + s["delay_s"] + self._random.random() * s["jitter_s"], packet.data, packet.to_right),)


def reset_of(data: bytes) -> bytes | None:
    """A segment that resets the connection of this one, as if its receiver had sent it; None for what is no established TCP over IPv4."""
    if data[0] >> 4 != 4 or data[9] != 6:
        return None
    at = (data[0] & 15) * 4
    flags = data[at + 13]
    if not flags & ACK or flags & RST:
        return None
    source, destination, _sequence, acknowledged = (
        data[at : at + 2],
        data[at + 2 : at + 4],
        data[at + 4 : at + 8],
        data[at + 8 : at + 12],
    )
    segment = destination + source + acknowledged + bytes(4) + bytes((0x50, RST, 0, 0, 0, 0, 0, 0))
    addresses = data[16:20] + data[12:16]
    check = _checksum(addresses + bytes((0, 6)) + len(segment).to_bytes(2, "big") + segment)
    segment = segment[:16] + check + segment[18:]
    head = bytes((0x45, 0)) + (20 + len(segment)).to_bytes(2, "big") + bytes((0, 0, 0x40, 0, 64, 6, 0, 0)) + addresses
    return head[:10] + _checksum(head) + head[12:] + segment


def _checksum(data: bytes) -> bytes:
    total = sum(int.from_bytes(data[i : i + 2].ljust(2, b"\0"), "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")
