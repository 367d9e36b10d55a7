"""Queries chronyd as chronyc does: command and monitoring protocol, version 6, over loopback UDP.

Layouts: candm.h and addressing.h of chrony, and the 32-bit floating-point format of util.c. Version 6 is chrony 2.0 to
4.x; the tracking and source reports did not change within it. Monitoring requests over UDP need no privilege from an
address that `cmdallow` covers, and loopback always is; `cmdport 0` closes the port. A request must be as long as its
reply.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Generator
from typing import Any

from agent.clock.daemons.report import (
    LEAPS,
    PPM,
    DaemonReport,
    Failed,
    Ignored,
    Reply,
    Talk,
    address,
    ns,
    ref_id,
    request_reply,
)

VERSION, REQUEST, REPLY = 6, 1, 2
N_SOURCES, SOURCE_DATA, TRACKING = 14, 15, 33
#: command -> (code of the reply, layout of its body)
_REPLIES = {
    N_SOURCES: (2, struct.Struct(">I")),
    SOURCE_DATA: (3, struct.Struct(">16sHxxhHHHHHI4s4s4s")),
    TRACKING: (5, struct.Struct(">4s16sHxxHHIII" + "4s" * 9)),
}
_ASK = struct.Struct(">BBxxHHIxxxxxxxx")
_ANSWER = struct.Struct(">BBxxHHHxxxxxxIxxxxxxxx")
_STATUS = {
    2: "not authorised",
    3: "invalid request",
    4: "no such source",
    6: "not enabled",
    10: "this host is not allowed",
    18: "another protocol version",
    19: "wrong length",
}
_STATES = ("selected", "unusable", "falseticker", "unstable", "combined", "excluded")
_NO_HIGH_SECONDS = 0x7FFFFFFF
_REFCLOCK, _NEVER = 2, 0xFFFFFFFF
MAX_SOURCES = 32


def real(raw: bytes) -> float:
    """chrony's Float: 7 bits of signed exponent, 25 of signed coefficient, coefficient * 2^(exponent - 25)."""
    word = int.from_bytes(raw, "big")
    exponent, coefficient = word >> 25, word & (1 << 25) - 1
    exponent -= (exponent >> 6) << 7
    coefficient -= (coefficient >> 24) << 25
    return float(coefficient) * 2.0 ** (exponent - 25)


def _question(command: int, body: bytes = b"") -> Generator[bytes | Ignored, Reply, tuple[Reply, tuple[Any, ...]]]:
    sequence = int.from_bytes(os.urandom(4), "big")
    code, layout = _REPLIES[command]
    request = _ASK.pack(VERSION, REQUEST, command, 0, sequence) + body
    request += bytes(max(0, _ANSWER.size + layout.size - len(request)))

    def decode(reply: Reply) -> tuple[Reply, tuple[Any, ...]]:
        data = reply.data
        if len(data) < _ANSWER.size:
            raise Ignored(f"truncated answer ({len(data)} bytes)")
        version, kind, requested, answered, status, echoed = _ANSWER.unpack_from(data)
        if kind != REPLY or requested != command or echoed != sequence:
            raise Ignored("answer to another question")
        if version != VERSION:
            raise Failed("error", f"chronyd speaks version {version} of its protocol, not {VERSION}")
        if status:
            raise Failed("error", f"chronyd refused: {_STATUS.get(status, f'status {status}')}")
        if answered != code or len(data) < _ANSWER.size + layout.size:
            raise Ignored(f"truncated or unknown answer (code {answered}, {len(data)} bytes)")
        return reply, layout.unpack_from(data, _ANSWER.size)

    return (yield from request_reply(request, decode))


def talk() -> Talk:
    """Yields one report of chronyd itself (kind system) and one of each of its sources."""
    reply, body = yield from _question(TRACKING)
    out = [tracking(body).at(reply)]
    _, (count,) = yield from _question(N_SOURCES)
    for index in range(min(count, MAX_SOURCES)):
        try:
            reply, body = yield from _question(SOURCE_DATA, struct.pack(">I", index))
        except Failed:  # removed meanwhile
            break
        out.append(source(body).at(reply))
    return out


def _where(raw: bytes, family: int, refclock: bool = False) -> str:
    if family == 1:
        return ref_id(raw[:4], 1) if refclock else address(socket.AF_INET, raw[:4])
    if family == 2:
        return address(socket.AF_INET6, raw)
    return f"ID#{int.from_bytes(raw[:4], 'big'):010d}" if family == 3 else ""


def tracking(body: tuple[Any, ...]) -> DaemonReport:
    """The report in a tracking reply. Its correction is positive if our clock is slow."""
    ref, ip, family, stratum, leap, high, low, nsec, *floats = body
    correction, last, rms, freq, residual, skew, delay, dispersion, interval = (real(f) for f in floats)
    seconds = low if high == _NO_HIGH_SECONDS else high << 32 | low
    synchronised = leap < 3
    return DaemonReport(
        "chrony",
        state="synchronised" if synchronised else "unsynchronised",
        source=_where(ip, family) or ref_id(ref, 1),
        offset_ns=ns(correction) if synchronised else None,
        distance_ns=ns(delay / 2 + dispersion) if synchronised else None,
        root_delay_ns=ns(delay),
        root_dispersion_ns=ns(dispersion),
        stratum=stratum,
        leap=LEAPS[min(leap, 3)],
        ref_id=ref.hex().upper(),
        last_update_wall_ns=seconds * 10**9 + nsec if seconds else None,
        update_interval_ns=ns(interval),
        last_offset_ns=-ns(last),
        rms_offset_ns=ns(rms),
        freq_ppb=-round(freq * PPM),
        residual_freq_ppb=-round(residual * PPM),
        skew_ppb=round(skew * PPM),
        reason="" if synchronised else "chronyd has no source that it trusts",
    )


def source(body: tuple[Any, ...]) -> DaemonReport:
    """The report in a source reply. Its measurements are positive if our clock is fast."""
    ip, *numbers, _, latest, error = body
    family, poll, stratum, state, mode, _, reach, since = numbers
    measured = since != _NEVER and any(error)
    return DaemonReport(
        "chrony",
        "source",
        _STATES[state] if state < len(_STATES) else "unusable",
        _where(ip, family, mode == _REFCLOCK),
        offset_ns=-ns(real(latest)) if measured else None,
        distance_ns=ns(real(error)) if measured else None,
        stratum=stratum,
        last_update_ago_ns=since * 10**9 if since != _NEVER else None,
        reach=reach,
        poll_s=round(2.0**poll),
    )
