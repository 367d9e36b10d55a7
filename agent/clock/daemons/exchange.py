"""One exchange with one address over UDP. Never blocks. Each exchange has its own socket, so that an attacker must also
guess its random port.

The socket is connected: the kernel drops datagrams from elsewhere and reports a closed port. The kernel dates arrivals
(SO_TIMESTAMPNS, CLOCK_REALTIME), so a late read does not change them.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections import Counter

from agent.clock import sample
from agent.clock.daemons.report import DaemonReport, Failed, Ignored, Reply, Talk

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("=qq")
_LARGEST = 2048
_AT_ONCE = 16  # datagrams per read; bounds the cost of a flood
# Wrong datagrams until the exchange is given up, so that a flood cannot keep the agent busy until the timeout.
_MOST_IGNORED = 256


class Exchange:
    """Runs an exchange. ``done``: its reports or its failure; None while it goes on. ignored: number of wrong datagrams
    by reason.

    Raises OSError if there is no such address family or route.
    """

    def __init__(self, talk: Talk, family: int, where: tuple[str, int], timeout_ns: int) -> None:
        self._talk, self._timeout_ns = talk, timeout_ns
        self.ignored: Counter[str] = Counter()
        self.done: list[DaemonReport] | Failed | None = None
        self.sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self.sock.connect(where)
            self._send(next(talk))
        except OSError as error:
            self._broken(error)
        except BaseException:
            self.sock.close()
            raise

    def _send(self, request: bytes | Ignored) -> None:
        assert isinstance(request, bytes)
        self._before = sample.read()
        self._sent_ns = time.time_ns()
        self.sock.send(request)
        self.deadline_ns = self._before.t_ns + self._timeout_ns

    def read(self) -> None:
        """Reads what has arrived."""
        try:
            for _ in range(_AT_ONCE):
                if self.done is not None:
                    return
                data, extra, _, _ = self.sock.recvmsg(_LARGEST, socket.CMSG_SPACE(_TIMESPEC.size))
                self._take(data, extra)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(error)

    def _take(self, data: bytes, extra: list[tuple[int, int, bytes]]) -> None:
        after, received = sample.read(), time.time_ns()
        for level, kind, value in extra:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, part = _TIMESPEC.unpack(value)
                received = seconds * 1_000_000_000 + part
        try:
            following = self._talk.send(Reply(data, self._sent_ns, received, self._before, after))
        except StopIteration as end:
            self.done = end.value
        except Failed as failure:
            self.done = failure
        except Exception as error:  # noqa: BLE001 - one daemon's answer must not stop the others
            self.done = Failed("error", f"its answer cannot be read ({type(error).__name__})")
        else:
            if isinstance(following, Ignored):
                self.ignored[str(following)] += 1
                if self.ignored.total() >= _MOST_IGNORED:
                    self.done = Failed("error", f"{_MOST_IGNORED} datagrams came that are not the answer")
            else:
                self._send(following)

    def expire(self, now_ns: int) -> None:
        """Fails the exchange if nothing valid has come within the timeout. now_ns: CLOCK_BOOTTIME."""
        if self.done is None and now_ns >= self.deadline_ns:
            seen = "".join(f"; {n} ignored: {why}" for why, n in self.ignored.most_common(2))
            self.done = Failed("silent", f"no answer within {self._timeout_ns / 1e9:g} s{seen}")

    def _broken(self, error: OSError) -> None:
        refused = error.errno == errno.ECONNREFUSED
        self.done = Failed(
            "refused" if refused else "error", "no process listens there" if refused else f"{error.strerror}"
        )

    def close(self) -> None:
        self._talk.close()
        self.sock.close()
