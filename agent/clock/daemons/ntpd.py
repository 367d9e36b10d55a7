"""Queries ntpd (the NTP project's and NTPsec's) as ntpq does: mode 6 control messages (RFC 9327) over loopback UDP 123.

`restrict ... noquery` for loopback disables it. OpenNTPD has no such protocol.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Generator

from agent.clock.daemons.report import LEAPS, PPM, DaemonReport, Failed, Ignored, Reply, Talk, request_reply
from agent.clock.daemons.sntp import timestamp_ns

_HEADER = struct.Struct(">BBHHHHH")
_FIRST = 2 << 3 | 6  # version 2, as ntpq sends; mode control
READ_STATUS, READ_VARIABLES = 1, 2
_RESPONSE, _ERROR, _MORE = 0x80, 0x40, 0x20
_ERRORS = (
    "unspecified",
    "authentication failed",
    "invalid length",
    "invalid opcode",
    "unknown association",
    "unknown variable",
    "bad value",
    "not allowed",
)
_SELECTED = ("unusable", "falseticker", "excluded", "excluded", "combined", "excluded", "selected", "selected")
MAX_PEERS, _MAX_FRAGMENTS, _MAX_BYTES = 16, 16, 65535
_SYSTEM = b"leap,stratum,refid,reftime,rootdelay,rootdisp,offset,frequency,sys_jitter,tc"
_PEER = b"srcadr,srcport,stratum,offset,delay,dispersion,jitter,reach,hpoll,leap,refid,rec"


class _Answer:
    """The fragments of one answer, in any order."""

    def __init__(self, opcode: int, sequence: int, association: int) -> None:
        self._request = opcode, sequence, association
        self._parts: dict[int, bytes] = {}
        self._end: int | None = None
        self.status = 0

    def take(self, data: bytes) -> bytes | None:
        """The complete answer, or None while fragments are missing. Raises Ignored, Failed."""
        if len(data) < _HEADER.size:
            raise Ignored(f"truncated answer ({len(data)} bytes)")
        first, second, sequence, status, association, offset, count = _HEADER.unpack_from(data)
        if first & 7 != 6 or not second & _RESPONSE or (second & 0x1F, sequence, association) != self._request:
            raise Ignored("answer to another question")
        if second & _ERROR:
            code = status >> 8
            raise Failed("error", f"ntpd refused: {_ERRORS[code] if code < len(_ERRORS) else f'error {code}'}")
        part = data[_HEADER.size : _HEADER.size + count]
        if len(part) < count or offset + count > _MAX_BYTES or len(self._parts) >= _MAX_FRAGMENTS:
            raise Ignored(f"truncated or overlong answer ({len(data)} bytes)")
        self._parts[offset], self.status = part, status
        if not second & _MORE:
            self._end = offset + count
        whole = b""
        while len(whole) in self._parts and self._parts[len(whole)]:
            whole += self._parts[len(whole)]
        return whole if self._end == len(whole) else None


def _question(
    opcode: int, association: int = 0, names: bytes = b""
) -> Generator[bytes | Ignored, Reply, tuple[Reply, int, bytes]]:
    sequence = int.from_bytes(os.urandom(2), "big") or 1
    answer = _Answer(opcode, sequence, association)
    request = _HEADER.pack(_FIRST, opcode, sequence, 0, association, 0, len(names)) + names + bytes(-len(names) % 4)

    def decode(reply: Reply) -> tuple[Reply, int, bytes]:
        whole = answer.take(reply.data)
        if whole is None:
            raise Ignored("part of an answer")
        return reply, answer.status, whole

    return (yield from request_reply(request, decode))


def variables(text: bytes) -> dict[str, str]:
    """Parses ``a=1, b="x, y"``. Never raises: malformed pairs are left out."""
    pairs = re.findall(r'([\w.]+)=("[^"]*"|[^,\r\n]*)', text.decode("latin-1"))
    return {name: value.strip().strip('"') for name, value in pairs}


def talk() -> Talk:
    """Yields one report of ntpd itself (kind system) and one of each of its associations."""
    reply, _, text = yield from _question(READ_VARIABLES, 0, _SYSTEM)
    out = [system(variables(text), reply)]
    _, _, pairs = yield from _question(READ_STATUS)
    for association, status in list(struct.iter_unpack(">HH", pairs[: len(pairs) // 4 * 4]))[:MAX_PEERS]:
        try:
            reply, _, text = yield from _question(READ_VARIABLES, association, _PEER)
        except Failed:  # gone meanwhile
            continue
        out.append(peer(variables(text), status, reply))
    return out


def _number(values: dict[str, str], name: str) -> float | None:
    try:
        return float(int(values[name], 0)) if values[name].startswith("0x") else float(values[name])
    except (KeyError, OverflowError, ValueError):
        return None


def _scaled(values: dict[str, str], name: str, factor: float) -> int | None:
    number = _number(values, name)
    return round(number * factor) if number is not None and abs(number) <= 1e15 else None  # NaN fails the comparison


def _whole(values: dict[str, str], name: str) -> int | None:
    return _scaled(values, name, 1)


def _when(values: dict[str, str], name: str, reply: Reply) -> int | None:
    """A timestamp such as ``0xe1a2b3c4.80000000`` as Unix ns."""
    found = re.match(r"0x([0-9a-f]{8})\.([0-9a-f]{8})", values.get(name, ""))
    value = int(found[1] + found[2], 16) if found else 0
    return timestamp_ns(value, reply.received_ns) if value else None


def _leap(values: dict[str, str]) -> str:
    """The leap indicator: the reference implementation prints it in binary (00, 01, 10, 11), NTPsec as a number."""
    text = values.get("leap", "")
    code = int(text, 2) if re.fullmatch("[01]{2}", text) else int(text) if text in ("0", "1", "2", "3") else -1
    return LEAPS[code] if code >= 0 else ""


def system(values: dict[str, str], reply: Reply) -> DaemonReport:
    """ntpd's own report. The skew stays unknown, because clk_wander is a change of the frequency and not a bound of its
    error. Raises Failed.
    """
    leap, offset = _leap(values), _scaled(values, "offset", 1e6)
    if not leap or offset is None:
        raise Failed("error", "ntpd's answer holds neither leap nor offset")
    delay, dispersion = _scaled(values, "rootdelay", 1e6), _scaled(values, "rootdisp", 1e6)
    synchronised = leap != "unsynchronised"
    return DaemonReport(
        "ntpd",
        state="synchronised" if synchronised else "unsynchronised",
        source=values.get("refid", ""),
        offset_ns=offset if synchronised else None,
        distance_ns=None if not synchronised or delay is None or dispersion is None else delay // 2 + dispersion,
        root_delay_ns=delay,
        root_dispersion_ns=dispersion,
        stratum=_whole(values, "stratum"),
        leap=leap,
        ref_id=values.get("refid", ""),
        last_update_wall_ns=_when(values, "reftime", reply),
        rms_offset_ns=_scaled(values, "sys_jitter", 1e6),
        freq_ppb=_scaled(values, "frequency", PPM),
        poll_s=None if (tc := _whole(values, "tc")) is None else 1 << min(max(tc, 0), 17),
        reason="" if synchronised else "ntpd has no source that it trusts",
    ).at(reply)


def peer(values: dict[str, str], status: int, reply: Reply) -> DaemonReport:
    """The report of one association. status: its status word; bits 8 to 10 are the selection (RFC 9327, figure 2)."""
    delay, dispersion, jitter = (_scaled(values, name, 1e6) for name in ("delay", "dispersion", "jitter"))
    reach = _whole(values, "reach")
    return DaemonReport(
        "ntpd",
        "source",
        _SELECTED[status >> 8 & 7],
        values.get("srcadr", ""),
        offset_ns=_scaled(values, "offset", 1e6) if reach else None,
        distance_ns=None if delay is None or dispersion is None else delay // 2 + dispersion,
        delay_ns=delay,
        rms_offset_ns=jitter,
        stratum=_whole(values, "stratum"),
        leap=_leap(values),
        ref_id=values.get("refid", ""),
        reach=reach,
        last_update_wall_ns=_when(values, "rec", reply),
        poll_s=None if (h := _whole(values, "hpoll")) is None else 1 << min(max(h, 0), 17),
    ).at(reply)
