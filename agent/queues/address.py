"""Addresses as the tables store them (agent.columns: ``addr`` and ``peer``)."""

from __future__ import annotations

import socket

V4_MAPPED = b"\0" * 10 + b"\xff\xff"


def addr_bytes(address: str) -> bytes:
    """16 bytes, IPv4 as v4-mapped. Raises OSError for what is no address."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return V4_MAPPED + socket.inet_pton(socket.AF_INET, address)


def peer_bytes(address: str, port: int) -> bytes:
    """18 bytes: the address, then the port in host order."""
    return addr_bytes(address) + port.to_bytes(2, "little")
