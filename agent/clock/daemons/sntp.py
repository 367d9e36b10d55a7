"""An independent check of the time: one SNTP query (RFC 4330; packet and arithmetic of RFC 5905) per poll.

PyPI's ntplib (0.4.0, 2021) is not used: it blocks, dates the answer when it reads it, keeps times in floats (0.5 us),
and accepts any packet from the server's address. Here the request's transmit timestamp is 64 random bits, which the
server must return. The true send time stays here.
"""

from __future__ import annotations

import os
import struct

from agent.clock.calls import NOISE_NS
from agent.clock.daemons.report import LEAPS, DaemonReport, Failed, Ignored, Reply, Talk, ref_id, request_reply

PACKET = struct.Struct(">BBbbII4sQQQQ")
_QUERY = 4 << 3 | 3  # version 4, mode client
_SERVER, _UNSYNCHRONISED, _MAX_STRATUM = 4, 3, 15
_UNIX = 2_208_988_800  # 1970 in seconds since 1900
_MAX_DISTANCE_NS = 16_000_000_000  # RFC 5905 MAXDISP: beyond 16 s the answer is useless
_KISSES = {b"DENY": "deny", b"RSTR": "deny", b"RATE": "rate"}


def timestamp_ns(value: int, near_ns: int) -> int:
    """Unix ns of a 64-bit NTP timestamp, of the era (2^32 s) that is nearest to ``near_ns``."""
    near = (near_ns // 1_000_000_000 + _UNIX) << 32
    era = (near - value + (1 << 63)) >> 64
    whole = value + (era << 64)
    return ((whole >> 32) - _UNIX) * 1_000_000_000 + ((whole & 0xFFFFFFFF) * 1_000_000_000 >> 32)


def short_ns(value: int) -> int:
    """ns of a 16.16 fixed-point number of seconds."""
    return value * 1_000_000_000 >> 16


def talk(server: str) -> Talk:
    """Yields one report: this server's time against ours. distance_ns bounds the error of offset_ns, if the server's
    own data is right.
    """
    nonce = int.from_bytes(os.urandom(8), "big") | 1
    request = PACKET.pack(_QUERY, 0, 0, 0, 0, 0, b"", 0, 0, 0, nonce)
    return (yield from request_reply(request, lambda reply: [decode(reply, nonce, server)]))


def decode(reply: Reply, nonce: int, server: str) -> DaemonReport:
    """Decodes the answer. Raises Ignored for a datagram that does not answer ``nonce``, Failed for a kiss-o'-death and
    for an unusable answer.
    """
    if len(reply.data) < PACKET.size:
        raise Ignored(f"truncated answer ({len(reply.data)} bytes)")
    first, stratum, poll, precision, delay, dispersion, ref, reference, origin, received, sent = PACKET.unpack_from(
        reply.data
    )
    leap, version, mode = first >> 6, first >> 3 & 7, first & 7
    if mode != _SERVER or not 1 <= version <= 4:
        raise Ignored(f"no answer of a server (mode {mode}, version {version})")
    if origin != nonce:
        raise Ignored("origin timestamp is not ours: stale, or spoofed")
    if stratum == 0:
        raise Failed("refused", f"kiss of death: {ref_id(ref, 0) or 'no code'}", _KISSES.get(ref, "rate"))
    root_delay, root_dispersion = short_ns(delay), short_ns(dispersion)
    if not received or not sent or root_delay // 2 + root_dispersion >= _MAX_DISTANCE_NS:
        raise Failed(
            "error",
            f"the server's answer has no time in it (root distance {(root_delay / 2 + root_dispersion) / 1e9:.3g} s)",
        )
    t1, t4 = reply.sent_ns, reply.received_ns
    t2, t3 = timestamp_ns(received, t1), timestamp_ns(sent, t1)
    if abs(reply.after.real_mono_ns - reply.before.real_mono_ns) > reply.after.err_ns + reply.before.err_ns + NOISE_NS:
        raise Failed("error", "the wall clock was stepped while the server answered")
    round_trip = (t4 - t1) - (t3 - t2)
    reading = 1_000_000_000 >> min(-precision, 30) if precision < 0 else 1_000_000_000
    if t3 < t2 or round_trip < -2 * reading:
        raise Failed("error", "the server sent before it received")
    round_trip = max(round_trip, 0)
    synchronised = leap != _UNSYNCHRONISED and stratum <= _MAX_STRATUM
    return DaemonReport(
        "sntp",
        "source",
        "synchronised" if synchronised else "unsynchronised",
        server,
        offset_ns=((t2 - t1) + (t3 - t4)) // 2,
        distance_ns=round_trip // 2 + root_delay // 2 + root_dispersion + reading,
        root_delay_ns=root_delay,
        root_dispersion_ns=root_dispersion,
        delay_ns=round_trip,
        stratum=stratum,
        leap=LEAPS[leap],
        ref_id=ref_id(ref, stratum),
        poll_s=1 << poll if 0 < poll < 18 else None,
        last_update_wall_ns=timestamp_ns(reference, t1) if reference else None,
        reason="" if synchronised else "the server says that it is not synchronised",
    ).at(reply)
