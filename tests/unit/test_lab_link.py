"""The laboratory's link: what its treatment makes of packets."""

from __future__ import annotations

import struct

from agent.lab.programs.dns_server import answer
from agent.lab.programs.link import USUAL
from agent.lab.stage.link import RST, Treatment, _checksum, reset_of
from agent.lab.stage.tun_link import ACK, Packet


def segment(source: int, destination: int, flags: int, payload: bytes = b"") -> bytes:
    tcp = struct.pack("!HHIIBBHHH", source, destination, 1000, 2000, 0x50, flags, 64, 0, 0)
    return (
        struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, b"\x0a\x4d\0\1", b"\x0a\x4d\0\2")
        + tcp
        + payload
    )


DATA = segment(5000, 6379, 0x18, b"PING")


def test_usually_it_only_takes_a_little() -> None:
    assert Treatment(USUAL, 1)(Packet(DATA, True)) == ((USUAL["usual_s"], DATA, True),)


def test_only_the_port_that_is_meant() -> None:
    settings = {**USUAL, "cut": True, "port": 6379, "protocol": 6}
    treat = Treatment(settings, 1)
    assert treat(Packet(DATA, True)) == ()
    assert treat(Packet(segment(6379, 5000, 0x10), False)) == ()
    assert len(treat(Packet(segment(5000, 8443, 0x18), True))) == 1
    settings["cut"] = False
    assert len(treat(Packet(DATA, True))) == 1


def test_loss_is_a_share_and_the_same_for_the_same_seed() -> None:
    lost = [not Treatment({**USUAL, "loss": 0.3}, seed)(Packet(DATA, True)) for seed in range(1000)]
    assert 0.2 < sum(lost) / 1000 < 0.4
    treat = Treatment({**USUAL, "loss": 0.3}, 7), Treatment({**USUAL, "loss": 0.3}, 7)
    assert [bool(treat[0](Packet(DATA, True))) for _ in range(100)] == [
        bool(treat[1](Packet(DATA, True))) for _ in range(100)
    ]


def test_a_reset_is_what_the_receiver_would_send() -> None:
    reset = reset_of(DATA)
    assert reset is not None
    packet = Packet(reset, False)
    assert (packet.flags, packet.ports) == (RST, (6379, 5000))
    assert struct.unpack_from("!I", reset, 24) == (2000,), "what the sender waits for next, else it ignores the reset"
    assert _checksum(reset[:20]) == b"\0\0"
    assert _checksum(reset[12:20] + bytes((0, 6, 0, 20)) + reset[20:]) == b"\0\0"
    assert reset_of(segment(1, 2, 0x02)) is None, "a SYN has acknowledged nothing yet"
    assert reset_of(b"\x60" + bytes(60)) is None


def test_a_firewall_refuses_connects_and_nothing_else() -> None:
    syn = segment(5000, 8000, 0x02)
    treat = {
        how: Treatment({**USUAL, "refuse": how, "port": 8000, "protocol": 6}, 1) for how in ("icmp", "reset", "drop")
    }
    for one in treat.values():
        assert one(Packet(segment(5000, 8000, 0x18), True)) == ((USUAL["usual_s"], segment(5000, 8000, 0x18), True),)
        assert len(one(Packet(segment(5000, 8443, 0x02), True))) == 1
    assert treat["drop"](Packet(syn, True)) == ()
    ((_, reset, to_right),) = treat["reset"](Packet(syn, True))
    packet = Packet(reset, to_right)
    assert (packet.flags, packet.ports, to_right) == (RST | ACK, (8000, 5000), False)
    assert struct.unpack_from("!II", reset, 24) == (0, 1001), "what refuses it acknowledges the SYN"
    assert _checksum(reset[12:20] + bytes((0, 6, 0, 20)) + reset[20:]) == b"\0\0"
    ((_, icmp, _),) = treat["icmp"](Packet(syn, True))
    assert (icmp[9], icmp[12:20], icmp[20:22], icmp[28:]) == (1, syn[16:20] + syn[12:16], b"\x03\x0d", syn[:28])
    assert _checksum(icmp[:20]) == _checksum(icmp[20:]) == b"\0\0"


def test_the_dns_server_answers_one_question() -> None:
    question = b"\x06policy\x03lab\0\0\x01\0\x01"
    reply = answer(b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + question, by_tcp=False)
    assert reply[:2] == b"\x12\x34"
    assert struct.unpack_from("!5H", reply, 2) == (0x8580, 1, 1, 0, 0)
    assert reply.endswith(b"\x0a\x4d\0\x02")
    assert (
        struct.unpack_from(
            "!5H", answer(b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + question[:-4] + b"\0\x1c\0\x01", by_tcp=False), 2
        )[2]
        == 0
    )
