"""How the laboratory's link treats packets: delay, jitter, loss, cut, reset and refusals, for all packets or those of
one port. Controlled by settings.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent.lab.stage.tun_link import ACK, Packet, Sent

RST = 0x04


class Treatment:
    """settings: a mapping that may change during use: ``delay_s``, ``jitter_s`` (one way), ``loss`` (share), ``cut``,
    ``reset`` (bool), ``refuse`` (treatment of a SYN: ``icmp``, ``reset``, ``drop``), ``port`` and ``protocol`` (the
    affected traffic: 0 is all; the IP number), ``usual_s`` (one way, always).
    """

    def __init__(self, settings: Mapping[str, Any], seed: int) -> None:
        self._settings, self._random = settings, random.Random(seed)

    def __call__(self, packet: Packet) -> Sequence[Sent]:
        settings = self._settings
        usual = (settings["usual_s"], packet.data, packet.to_right)
        if (settings["port"] and settings["port"] not in packet.ports) or (
            settings["protocol"] and settings["protocol"] != packet.protocol
        ):
            return (usual,)
        if settings["reset"] and (reset := reset_of(packet.data)):
            return (usual, (0.0, reset, not packet.to_right))
        if settings["refuse"] and packet.kind == "syn" and packet.data[0] >> 4 == 4:
            answer = {"icmp": prohibited, "reset": refusal_of}.get(settings["refuse"])
            return ((0.0, answer(packet.data), not packet.to_right),) if answer else ()
        if settings["cut"] or (settings["loss"] and self._random.random() < settings["loss"]):
            return ()
        return (
            (
                settings["usual_s"] + settings["delay_s"] + self._random.random() * settings["jitter_s"],
                packet.data,
                packet.to_right,
            ),
        )


def reset_of(data: bytes) -> bytes | None:
    """A segment that resets the connection of this one, as from its receiver; None unless it belongs to an established
    TCP connection over IPv4.
    """
    if data[0] >> 4 != 4 or data[9] != 6:
        return None
    at = (data[0] & 15) * 4
    flags = data[at + 13]
    if not flags & ACK or flags & RST:
        return None
    return _segment(data, data[at + 8 : at + 12], bytes(4), RST)


def refusal_of(data: bytes) -> bytes:
    """The reset that refuses this SYN, as from its receiver."""
    at = (data[0] & 15) * 4
    following = (int.from_bytes(data[at + 4 : at + 8], "big") + 1) % 2**32
    return _segment(data, bytes(4), following.to_bytes(4, "big"), RST | ACK)


def prohibited(data: bytes) -> bytes:
    """An ICMP message from its receiver's host: communication administratively prohibited (RFC 1812)."""
    message = bytes((3, 13, 0, 0)) + bytes(4) + data[: (data[0] & 15) * 4 + 8]
    return _packet(data, 1, message[:2] + _checksum(message) + message[4:])


def _segment(data: bytes, sequence: bytes, acknowledged: bytes, flags: int) -> bytes:
    """A segment in reply to this one."""
    at = (data[0] & 15) * 4
    segment = (
        data[at + 2 : at + 4] + data[at : at + 2] + sequence + acknowledged + bytes((0x50, flags, 0, 0, 0, 0, 0, 0))
    )
    addresses = data[16:20] + data[12:16]
    check = _checksum(addresses + bytes((0, 6)) + len(segment).to_bytes(2, "big") + segment)
    return _packet(data, 6, segment[:16] + check + segment[18:])


def _packet(data: bytes, protocol: int, payload: bytes) -> bytes:
    """A packet back to the sender."""
    head = bytes((0x45, 0)) + (20 + len(payload)).to_bytes(2, "big") + bytes((0, 0, 0x40, 0, 64, protocol, 0, 0))
    head += data[16:20] + data[12:16]
    return head[:10] + _checksum(head) + head[12:] + payload


def _checksum(data: bytes) -> bytes:
    total = sum(int.from_bytes(data[i : i + 2].ljust(2, b"\0"), "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")
