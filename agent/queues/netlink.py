"""Netlink dumps as numpy arrays: TCP sockets by sock_diag and queueing disciplines by rtnetlink; no privilege needed.

pyroute2 0.9 is not used: its import costs 16 MB of resident memory (asyncio, ssl, all of its families), and its
DiagSocket 33 us a socket, against 2 us here. The layouts are those of include/uapi/linux/inet_diag.h and pkt_sched.h;
tests compare them with pyroute2's declarations and answers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NETLINK_SOCK_DIAG = 4
TCPDIAG_GETSOCK, RTM_GETQDISC = 18, 38
NLMSG_ERROR, NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
ESTABLISHED, LISTEN = 1, 10
#: States whose queues hold a program's data: ESTABLISHED FIN_WAIT1 CLOSE_WAIT LAST_ACK LISTEN CLOSING.
STATES = 1 << ESTABLISHED | 1 << 4 | 1 << 8 | 1 << 9 | 1 << LISTEN | 1 << 11
_INFO, _SKMEMINFO, _CGROUP_ID = 2, 7, 21  # INET_DIAG_INFO; INET_DIAG_SKMEMINFO; INET_DIAG_CGROUP_ID, since 5.9
_BYTECODE, _JMP, _S_EQ, _D_EQ = 1, 1, 11, 12  # INET_DIAG_REQ_BYTECODE; INET_DIAG_BC_*
_TCP_INFO = 120, 176  #: Offsets of tcpi_bytes_acked and tcpi_rwnd_limited in struct tcp_info.
_SK_MEMINFO_DROPS = 8 * 4  # Offset of sk_drops in the u32 array of INET_DIAG_SKMEMINFO.
_TCA_KIND, _TCA_STATS2, _TCA_STATS_QUEUE = 1, 7, 3
TC_H_ROOT = 0xFFFFFFFF
_TIMEOUT_S = 1.0

#: struct inet_diag_msg.
INET_DIAG_MSG = np.dtype(
    [
        ("family", "u1"),
        ("state", "u1"),
        ("timer", "u1"),
        ("retrans", "u1"),
        ("sport", ">u2"),
        ("dport", ">u2"),
        ("src", "u1", 16),
        ("dst", "u1", 16),
        ("if", "<u4"),
        ("cookie", "<u8"),
        ("expires", "<u4"),
        ("rqueue", "<u4"),
        ("wqueue", "<u4"),
        ("uid", "<u4"),
        ("inode", "<u4"),
    ]
)


class Qdisc(NamedTuple):
    """A queueing discipline's counters (struct gnet_stats_queue)."""

    ifindex: int
    parent: int
    kind: str
    packets: int
    backlog_bytes: int
    drops: int


def tcp_sockets() -> tuple[np.ndarray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All TCP sockets of this network namespace in STATES, their cgroup ids and their drops (-1 if the kernel gives
    none).

    A listening socket drops connections when its queue is full. Shapes (n,) each; the first of dtype INET_DIAG_MSG.
    Raises OSError.
    """
    found, cgroups, drops = [np.empty(0, INET_DIAG_MSG)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    # struct inet_diag_req, not SOCK_DIAG_BY_FAMILY: it covers both families in one walk of the kernel's tables, most of
    # whose buckets are empty.
    request = struct.pack("=BBBB48xII", socket.AF_UNSPEC, 0, 0, 1 << (_SKMEMINFO - 1), STATES, 0)
    for chunk in _dump(NETLINK_SOCK_DIAG, TCPDIAG_GETSOCK, request):
        starts = _starts(chunk)
        data = np.frombuffer(chunk, np.uint8)
        found.append(data[starts[:, None] + np.arange(16, 16 + INET_DIAG_MSG.itemsize)].view(INET_DIAG_MSG)[:, 0])
        cgroups.append(_values(chunk, data, starts, _CGROUP_ID, 0, "<i8"))
        drops.append(_values(chunk, data, starts, _SKMEMINFO, _SK_MEMINFO_DROPS, "<u4"))
    return np.concatenate(found), np.concatenate(cgroups), np.concatenate(drops)


def progress(sockets: np.ndarray) -> npt.NDArray[np.int64]:
    """For each of these sockets (dtype INET_DIAG_MSG): the bytes that the other end has acknowledged, and the total
    time in us that written data waited for its window (RFC 4898). -1 for a socket that is gone, and where the kernel
    gives no value. Shape (n, 2). Raises OSError.
    """
    found = np.full((len(sockets), len(_TCP_INFO)), -1, np.int64)
    if not len(sockets):
        return found
    only = _ports(sockets)
    request = (
        struct.pack("=BBBB48xII", socket.AF_UNSPEC, 0, 0, 1 << (_INFO - 1), STATES, 0)
        + struct.pack("=HH", 4 + len(only), _BYTECODE)
        + only
    )
    for chunk in _dump(NETLINK_SOCK_DIAG, TCPDIAG_GETSOCK, request):
        starts = _starts(chunk)
        data = np.frombuffer(chunk, np.uint8)
        cookies = data[starts[:, None] + np.arange(16, 16 + INET_DIAG_MSG.itemsize)].view(INET_DIAG_MSG)[:, 0]["cookie"]
        values = np.stack([_values(chunk, data, starts, _INFO, at, "<i8") for at in _TCP_INFO], axis=1)
        for cookie, its in zip(cookies, values, strict=True):
            found[sockets["cookie"] == cookie] = its
    return found


def _ports(sockets: np.ndarray) -> bytes:
    """The kernel's filter (struct inet_diag_bc_op) for connections with the ports of one of these sockets. For each
    socket: compare the own port, else go to the next; compare the peer's port, else go to the next; accept.
    """
    out = b""
    for i, (sport, dport) in enumerate(zip(sockets["sport"].tolist(), sockets["dport"].tolist(), strict=True)):
        left = 20 * (len(sockets) - i)
        miss = 4 if left == 20 else 0  # a jump beyond the end rejects
        out += struct.pack(
            "=BBHBBHBBHBBHBBH", _S_EQ, 8, 20 + miss, 0, 0, sport, _D_EQ, 8, 12 + miss, 0, 0, dport, _JMP, 4, left - 16
        )
    return out


def qdiscs() -> list[Qdisc]:
    """The queueing disciplines of all devices of this network namespace. Raises OSError."""
    found = []
    for chunk in _dump(socket.NETLINK_ROUTE, RTM_GETQDISC, bytes(20)):
        for start in _starts(chunk).tolist():
            (length,) = struct.unpack_from("=I", chunk, start)
            ifindex, _, parent = struct.unpack_from("=iII", chunk, start + 20)
            attributes = dict(_attributes(chunk, start + 36, start + length))
            stats = attributes.get(_TCA_STATS2)
            if stats is None or _TCA_KIND not in attributes:
                continue
            queue = dict(_attributes(chunk, *stats)).get(_TCA_STATS_QUEUE)
            if queue is not None:
                packets, backlog, drops = struct.unpack_from("=III", chunk, queue[0])
                first, last = attributes[_TCA_KIND]
                found.append(Qdisc(ifindex, parent, chunk[first:last].rstrip(b"\0").decode(), packets, backlog, drops))
    return found


def _dump(protocol: int, message: int, request: bytes) -> Iterator[bytes]:
    """The datagrams of a dump's answer, without the messages that end it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.send(struct.pack("=IHHII", 16 + len(request), message, _REQUEST_DUMP, 1, 0) + request)
        while True:
            chunk = sock.recv(1 << 17)
            _, kind = struct.unpack_from("=IH", chunk)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                code = -struct.unpack_from("=i", chunk, 16)[0]
                raise OSError(code, f"netlink dump {message} refused")
            yield chunk


def _starts(chunk: bytes) -> npt.NDArray[np.int64]:
    """Where the messages of a datagram start. Computed at once if all have the same length, which is usual within a
    family.
    """
    words = np.frombuffer(chunk, "<u4", len(chunk) // 4)
    step = (int(words[0]) + 3) & ~3
    if (
        len(chunk) % step == 0
        and (words[:: step // 4] == words[0]).all()
        and (words[1 :: step // 4] & 0xFFFF != NLMSG_DONE).all()
    ):
        return np.arange(0, len(chunk), step)
    starts, at = [], 0
    while at + 16 <= len(chunk):
        length, kind = struct.unpack_from("=IH", chunk, at)
        if kind == NLMSG_DONE or length < 16:
            break
        starts.append(at)
        at += (length + 3) & ~3
    return np.array(starts, np.int64)


def _values(
    chunk: bytes, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], wanted: int, at: int, dtype: str
) -> npt.NDArray[np.int64]:
    """The number at byte ``at`` of an attribute, -1 without it. Its offset is determined once per message length, not
    per message.
    """
    found = np.full(len(starts), -1, np.int64)
    size = np.dtype(dtype).itemsize
    lengths = data[starts[:, None] + np.arange(4)].view("<u4")[:, 0]
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        first = int(starts[chosen[0]])
        place = dict(_attributes(chunk, first + 16 + INET_DIAG_MSG.itemsize, first + length)).get(wanted)
        if place is not None and place[1] - place[0] >= at + size:
            offset = place[0] - first
            values = (
                data[starts[chosen][:, None] + np.arange(offset + at, offset + at + size)]
                .view(dtype)[:, 0]
                .astype(np.int64)
            )
            headers = data[starts[chosen][:, None] + np.arange(offset - 2, offset)].view("<u2")[:, 0]
            found[chosen] = np.where(headers == wanted, values, -1)
    return found


def _attributes(chunk: bytes, at: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Type and (start, end) of the payload of each attribute."""
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", chunk, at)
        if length < 4:
            return
        yield kind & 0x3FFF, (at + 4, at + length)
        at += (length + 3) & ~3
