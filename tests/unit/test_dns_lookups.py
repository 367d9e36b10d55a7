"""Lookups as the kernel hands them over, made into rows: from anybody, so names may hold anything."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.address import peer_text
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire
from agent.probes.dns import decode_lookups, question, shown
from agent.tables import TABLES

RECORD = Wire.read(BPF_DIR / "events.h", BPF_DIR / "dns.bpf.c").dtype("dns_event")
LIBC, SOCKET, GO = range(3)
SERVER = np.frombuffer(bytes(10) + b"\xff\xff\x0a\0\0\x35", np.uint8)


def row(**fields: object) -> np.void:
    records = np.zeros(1, RECORD)
    records["rcode"], records["peer_addr"], records["peer_port"] = 0xFF, SERVER, 53
    for name, value in fields.items():
        records[name] = value
    return decode_lookups(records).rows[0]


def result(of: np.void) -> str:
    return TABLES["dns_lookup"].by_name["result"].names[of["result"]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"code": 0, "answered": 2, "rcode": 0}, "ok"),
        ({"code": 0}, "ok"),
        ({"code": -2, "answered": 1, "rcode": 3}, "nxdomain"),
        ({"code": -5, "answered": 1, "rcode": 0}, "nodata"),
        ({"code": -3, "answered": 1, "rcode": 2}, "servfail"),
        ({"code": -3, "answered": 1, "rcode": 5}, "refused"),
        ({"code": -3, "refused": 2}, "refused"),
        ({"code": -3, "unanswered": 3}, "timeout"),
        ({"code": -3, "duration_ns": 5 * 10**9}, "timeout"),
        ({"code": -3, "duration_ns": 10**6}, "error"),
        ({"code": -10}, "error"),
        ({"source": SOCKET, "answered": 1, "rcode": 0}, "ok"),
        ({"source": SOCKET, "answered": 1, "rcode": 3}, "nxdomain"),
        ({"source": SOCKET, "answered": 1, "rcode": 4}, "error"),
        ({"source": SOCKET, "unanswered": 1}, "timeout"),
        ({"source": SOCKET, "refused": 1}, "refused"),
        ({"source": GO, "code": 0}, "ok"),
        ({"source": GO, "code": -1, "problem": b"no such host"}, "nxdomain"),
        ({"source": GO, "code": -1, "problem": b"server misbehaving"}, "servfail"),
        ({"source": GO, "code": -1, "problem": b"read udp 10.0.0.1:4->10.0.0.53:53: i/o timeout"}, "timeout"),
        ({"source": GO, "code": -1, "problem": b"read: connection refused"}, "refused"),
        ({"source": GO, "code": -1}, "error"),
    ],
)
def test_how_it_ended(fields: dict[str, object], expected: str) -> None:
    assert result(row(**fields)) == expected


def test_what_is_not_known_is_null() -> None:
    one = row(source=SOCKET, unanswered=1)
    assert (one["tries"], one["rcode"], one["code"], one["name"], one["qtype"]) == (1, NULL_I64, NULL_I64, b"", b"")
    one = row(code=-2, duration_ns=10**6, name=b"db", family=10, peer_addr=0, peer_port=0)
    assert (one["tries"], one["code"], one["name"], one["qtype"]) == (NULL_I64, -2, b"db", b"AAAA")
    assert peer_text(one["peer"].tobytes()) == ""


def test_tries_are_the_questions_that_nobody_answered_and_the_last() -> None:
    assert row(unanswered=2, answered=2)["tries"] == 3 and row(unanswered=2)["tries"] == 2


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"10.0.0.53:53", "10.0.0.53:53"),
        (b"[2001:db8::1]:53", "[2001:db8::1]:53"),
        (b"[fe80::1%eth0]:53", "[fe80::1]:53"),
        (b"nonsense", ""),
        (b"10.0.0.1:99999", ""),
        (b"\xff\x1b:53", ""),
    ],
)
def test_the_server_that_a_program_names(output: bytes, expected: str) -> None:
    assert peer_text(row(source=GO, code=-1, server=output, peer_addr=0, peer_port=0)["peer"].tobytes()) == expected


def test_questions_of_anybody() -> None:
    assert question(b"\x06policy\x03lab\0\0\x1c\0\x01") == (b"policy.lab", b"AAAA")
    assert question(b"\x01a\0\x01\x00\0\x01") == (b"a", b"TYPE256")
    assert question(b"\0\0\2\0\1") == (b".", b"NS")
    chance = random.Random(7)
    for _ in range(2000):
        raw = chance.randbytes(chance.randrange(129))
        one = row(source=SOCKET, answered=1, rcode=0, name=raw)
        assert one["name"].isascii() and one["name"].decode().isprintable() and len(one["name"]) <= 128


def test_names_are_shown_without_what_acts_on_a_terminal() -> None:
    assert shown(b"ok-1.example.org.") == b"ok-1.example.org."
    assert shown(b"a\x1b[2J\n \xe2\x80\xae\x7f") == b"a\\027[2J\\010\\032\\226\\128\\174\\127"
    long_ = row(name=b"\x1b" * 127)["name"]
    assert len(long_) == 128 and b"~" in long_
