"""Numbers and names as people say them. No module of the correlator formats a number on its own."""

from __future__ import annotations

import ipaddress
import json
import struct
from collections.abc import Sequence

_NS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))


def number(value: float) -> str:
    """At most three digits that matter; whole from 100 on."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}"


def span(ns: float) -> str:
    """A duration: ``1.42 s``, ``0.8 ms``, ``45 us``."""
    size = abs(ns)
    for unit, name in _NS:
        if size >= unit * 0.9995:
            return f"{number(size / unit)} {name}"
    return "0 ns"


def seconds(value_s: float) -> str:
    """A duration given in seconds, minutes from two of them on."""
    return f"{number(value_s / 60)} min" if value_s >= 120 else span(value_s * 1e9)


def instant(t_ns: int) -> str:
    """A CLOCK_BOOTTIME instant, as ``--since`` takes it."""
    return f"boot+{t_ns / 1e9:.3f}"


def percent(share: float) -> str:
    return f"{number(100 * share)} %"


def text(value: bytes) -> str:
    """A stored text; bytes that are no UTF-8 are shown escaped."""
    return value.decode("utf-8", "backslashreplace")


def address(raw: bytes) -> str:
    """A stored address (16 bytes), empty where unknown."""
    if not any(raw):
        return ""
    ip = ipaddress.IPv6Address(raw)
    return str(ip.ipv4_mapped or ip)


def peer(raw: bytes) -> str:
    """A stored peer (address and port) as ``ip:port`` or ``[ip6]:port``, empty where unknown."""
    ip = address(raw[:16])
    if not ip:
        return ""
    port = struct.unpack("<H", raw[16:18])[0]
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def process(comm: str, pid: int | None) -> str:
    if pid is None:
        return comm or "an unknown process"
    return f"{comm} pid {pid}" if comm else f"pid {pid}"


def listing(items: Sequence[str], limit: int = 3) -> str:
    """``a, b and c``; beyond the limit ``a, b, c and 4 more``."""
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def fit(text_: str, width: int) -> bytes:
    """UTF-8, cut to ``width`` bytes between characters, with an ellipsis where something was cut."""
    raw = text_.encode()
    return raw if len(raw) <= width else raw[: width - 3].decode("utf-8", "ignore").encode() + b"..."


def fit_json(items: Sequence[object], width: int) -> bytes:
    """A compact JSON array of as many leading items as fit into ``width`` bytes."""
    kept = [json.dumps(item, separators=(",", ":"), sort_keys=True, ensure_ascii=True) for item in items]
    while kept and sum(map(len, kept)) + len(kept) + 1 > width:
        kept.pop()
    return f"[{','.join(kept)}]".encode()
