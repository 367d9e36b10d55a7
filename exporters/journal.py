"""Findings as entries of the systemd journal, each field of its own.

The native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): a datagram of lines ``NAME=value``. A value with a
line feed has its length in front of it instead, so that no value can add a field.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from typing import Any

from agent.common.finding import CLOSED, FindingEvent, FindingEvents
from exporters.lane import Lane
from exporters.notifier import Notifier
from exporters.send import Outcome

SOCKET = "/run/systemd/journal/socket"
#: MESSAGE_ID of an entry: random numbers, the same in all versions.
OPENED_ID, CLOSED_ID = "4c97aebf2cb548548a8783219552e952", "f03b60d63a7f4ce3ab844a2bfc3b0fef"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def entry(fields: Iterable[tuple[str, Any]]) -> bytes:
    """The datagram of one entry. Names are our own: capital letters, digits and underscores."""
    out = bytearray()
    for name, value in fields:
        data = str(value).encode(errors="backslashreplace")
        if b"\n" in data:
            out += name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
        else:
            out += name.encode() + b"=" + data + b"\n"
    return bytes(out)


class JournalSender:
    """A ``Sender`` of entries. Never blocks: while journald is behind or away, an entry is tried again."""

    def __init__(self, path: str = SOCKET) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def send(self, data: bytes) -> Outcome:
        try:
            try:
                self._socket.sendto(data, self.path)
            except OSError as error:
                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                    raise
                self._send_sealed(data)
        except OSError as error:
            return Outcome("retry", message=f"{error.strerror}: {self.path}")
        return Outcome("sent")

    def _send_sealed(self, data: bytes) -> None:
        """An entry that is too large for a datagram: as a file in memory that nobody can change any more."""
        memory = os.memfd_create("tickscope-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(memory, "wb", buffering=0) as file:
            file.write(data)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))
            self._socket.sendmsg([], [rights], 0, self.path)

    def abort(self) -> None:
        """Nothing blocks."""

    def close(self) -> None:
        self._socket.close()


class JournalNotifier(Notifier):
    def __init__(self, events: FindingEvents, path: str = SOCKET) -> None:
        super().__init__("journal", events, Lane("journal", JournalSender(path), b"".join))
        self._path = path

    @property
    def endpoint(self) -> str:
        return self._path

    def encoded(self, one: FindingEvent) -> bytes:
        own = {f"TICKSCOPE_{name.upper()}": value for name, value in one.fields.items()}
        return entry(
            {
                "MESSAGE": one.message,
                "MESSAGE_ID": CLOSED_ID if one.event == CLOSED else OPENED_ID,
                "PRIORITY": one.level,
                "SYSLOG_IDENTIFIER": "tickscope",
                "TICKSCOPE_EVENT": one.event,
                **own,
            }.items()
        )

    def remedy(self, error: str) -> str:
        return "is systemd-journald running, and its socket in the agent's mount namespace?"
