"""What a daemon or server reports about the wall clock (a future row of ``clock_daemon``), and the request-reply
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agent.clock.sample import Reading

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
LEAPS = ("none", "insert", "delete", "unsynchronised")  # RFC 5905 figure 9
PPM = 1000


class Reply(NamedTuple):
    """A datagram. sent_ns, received_ns: CLOCK_REALTIME just before the request was sent, and when the kernel received
    the answer. before, after: the clocks at about these instants.
    """

    data: bytes
    sent_ns: int
    received_ns: int
    before: Reading
    after: Reading


class Ignored(Exception):
    """A datagram that is not the answer (malformed, or for another request). It is counted, and the
    exchange goes on.
    """


class Failed(Exception):
    """An answer that reports an error. state: of the row. stop: whether to query less often, or (``deny``)
    never again.
    """

    def __init__(self, state: str, reason: str, stop: str = "") -> None:
        super().__init__(reason)
        self.state, self.reason, self.stop = state, reason, stop


@dataclass
class DaemonReport:
    """A row; None is unknown. offset_ns: the source's time minus ours, positive if our clock is slow (RFC 5905's
    theta). freq_ppb: the correction that the oscillator needs, positive if it is slow, as adjtimex's.

    last_update_wall_ns: Unix time of the last update, by the wall clock at that time. real_raw_ns, boot_mono_ns:
    REALTIME - MONOTONIC_RAW and BOOTTIME - MONOTONIC at t_ns.
    """

    daemon: str
    kind: str = "system"
    state: str = ""
    source: str = ""
    t_ns: int = 0
    offset_ns: int | None = None
    distance_ns: int | None = None
    root_delay_ns: int | None = None
    root_dispersion_ns: int | None = None
    delay_ns: int | None = None
    stratum: int | None = None
    leap: str = ""
    ref_id: str = ""
    last_update_wall_ns: int | None = None
    last_update_ago_ns: int | None = None
    update_interval_ns: int | None = None
    last_offset_ns: int | None = None
    rms_offset_ns: int | None = None
    freq_ppb: int | None = None
    residual_freq_ppb: int | None = None
    skew_ppb: int | None = None
    reach: int | None = None
    poll_s: int | None = None
    real_raw_ns: int | None = None
    boot_mono_ns: int = 0
    reason: str = ""

    def at(self, reply: Reply) -> DaemonReport:
        """The report, dated at the reply. If the clock was adjusted while the answer was under way, the adjustment is
        added to the error bound.
        """
        before, after = (r.real_mono_ns + r.mono_raw_ns for r in (reply.before, reply.after))
        self.t_ns, self.real_raw_ns, self.boot_mono_ns = reply.after.t_ns, after, reply.after.boot_mono_ns
        if self.distance_ns is not None:
            self.distance_ns += abs(after - before) + reply.after.err_ns
        return self


Talk = Generator["bytes | Ignored", Reply, list[DaemonReport]]


def request_reply(request: bytes, decode: Callable[[Reply], T]) -> Generator[bytes | Ignored, Reply, T]:
    """Sends ``request`` and waits for the datagram that ``decode`` accepts. ``decode`` raises Ignored for others, and
    Failed.
    """
    reply = yield request
    while True:
        try:
            return decode(reply)
        except Ignored as why:
            reply = yield why


def address(family: int, raw: bytes) -> str:
    """Text of an IPv4 or IPv6 address in network order."""
    import socket

    return socket.inet_ntop(family, raw)


def ref_id(raw: bytes, stratum: int) -> str:
    """A reference id by RFC 5905 7.3: up to stratum 1 four characters, beyond it an IPv4 address or four bytes of the
    hash of an IPv6 address.
    """
    if stratum <= 1:
        return "".join(chr(b) for b in raw.rstrip(b"\0") if 32 < b < 127)
    return ".".join(str(b) for b in raw)


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def to_rows(reports: Iterable[DaemonReport], to_boot: Callable[[int], int]) -> np.ndarray:
    """Rows of table ``clock_daemon``. to_boot: Unix ns to CLOCK_BOOTTIME ns."""
    from agent.tables import TABLES

    table = TABLES["clock_daemon"]
    made = list(reports)
    rows = table.empty(len(made))
    for row, b in zip(rows, made, strict=True):
        for f in fields(b):
            value = getattr(b, f.name)
            column = table.by_name.get(f.name)
            if column is None or value is None or value == "":
                continue
            row[f.name] = (
                column.code(value)
                if column.kind == "enum"
                else value.encode()[: column.width]
                if isinstance(value, str)
                else value
            )
        if b.last_update_wall_ns is not None:
            row["last_update_ns"] = to_boot(b.last_update_wall_ns)
        elif b.last_update_ago_ns is not None:
            row["last_update_ns"] = b.t_ns - b.last_update_ago_ns
    return rows
