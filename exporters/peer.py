"""The owner of a connection: the user of a client on this host, else its address. One request to the kernel
(sock_diag), about 10 us.

The request names one socket (both ends' addresses and ports), so its cost does not grow with the host's sockets, as
that of /proc/net/tcp does. It needs no privilege. Layouts: include/uapi/linux/inet_diag.h (inet_diag_req_v2,
inet_diag_msg).
"""

from __future__ import annotations

import socket
import struct

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_NO_COOKIE = b"\xff" * 8
_UID_AT = 16 + 64  # after nlmsghdr: 4 bytes, inet_diag_sockid (48), expires, rqueue, wqueue


def owner(connection: socket.socket) -> int | str:
    """The uid if the other end is a socket of this host that the kernel shows, else its address. Never raises."""
    try:
        uid = user(connection)
        return connection.getpeername()[0] if uid is None else uid
    except OSError:
        return "unknown"


def user(connection: socket.socket) -> int | None:
    """The uid of the other end's owner, None if it is in another network namespace, or gone. Never raises."""
    try:
        return _uid(connection.family, connection.getpeername(), connection.getsockname())
    except OSError:
        return None


def _uid(family: int, remote: tuple[str, int], local: tuple[str, int]) -> int | None:
    def packed(address: str) -> bytes:
        return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")

    where = struct.pack("!HH", remote[1], local[1]) + packed(remote[0]) + packed(local[0]) + bytes(4) + _NO_COOKIE
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + where
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(0.2)
        netlink.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + request)
        answer = netlink.recv(4096)
    _, kind = struct.unpack_from("=IH", answer)
    if kind == _ERROR or len(answer) < _UID_AT + 8:
        return None
    uid, inode = struct.unpack_from("=II", answer, _UID_AT)
    return int(uid) if inode else None  # already closed by its owner: the kernel reports 0
