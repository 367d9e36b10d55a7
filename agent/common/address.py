"""Addresses as the tables store them (agent/columns.py: ``addr`` and ``peer``), and as text."""

from __future__ import annotations

import re
import socket

#: Prefix of an address that stands for a Unix socket (bpf/unix_name.h); no network uses it. 8 bytes made of its path
#: and file system follow.
UNIX = b"\1UNIX\0\0\0"
V4_MAPPED = b"\0" * 10 + b"\xff\xff"


def addr_bytes(address: str) -> bytes:
    """16 bytes, IPv4 as v4-mapped. Raises OSError for an invalid address."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return V4_MAPPED + socket.inet_pton(socket.AF_INET, address)


def peer_bytes(address: str, port: int) -> bytes:
    """18 bytes: the address, then the port in host order."""
    return addr_bytes(address) + port.to_bytes(2, "little")


def peer_of(text: str) -> bytes:
    """18 bytes of ``ip:port``, ``[ip6]:port`` or ``unix:`` and 16 hexadecimal digits. Raises ValueError."""
    if text.startswith("unix:"):
        if not re.fullmatch(r"unix:[0-9a-f]{16}", text):
            raise ValueError(f"{text!r} is no unix: and 16 hexadecimal digits")
        number = int(text[5:], 16)
        return UNIX + (number % 2**64).to_bytes(8, "little") + (number >> 24 & 0xFFFF | 1).to_bytes(2, "little")
    address, colon, port = text.rpartition(":")
    try:
        bare = address[1:-1] if address[:1] == "[" and address[-1:] == "]" else address
        if not colon or (":" in bare) != (bare != address):
            raise ValueError
        return peer_bytes(bare, int(port))
    except (OSError, OverflowError, ValueError):
        raise ValueError(f"{text!r} is no ip:port") from None


def addr_text(raw: bytes) -> str:
    """A stored address (16 bytes) as text; empty if it is all zero, which means unknown."""
    if not any(raw):
        return ""
    if raw.startswith(UNIX):
        return f"unix:{int.from_bytes(raw[8:16], 'little'):016x}"
    return (
        socket.inet_ntop(socket.AF_INET, raw[12:])
        if raw.startswith(V4_MAPPED)
        else socket.inet_ntop(socket.AF_INET6, raw)
    )


def peer_text(raw: bytes) -> str:
    """A stored peer (18 bytes) as ``ip:port``, ``[ip6]:port`` or ``unix:NUMBER``; empty if its address is unknown."""
    address = addr_text(raw[:16])
    if raw.startswith(UNIX):
        return address
    return with_port(address, int.from_bytes(raw[16:18], "little")) if address else ""


def with_port(address: str, port: int) -> str:
    """``192.0.2.1:80``, ``[2001:db8::1]:80``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
