"""Limiter decisions that programs report themselves: one JSON object a datagram on a Unix socket.

Who sent it is told by the kernel (SCM_CREDENTIALS), not by the sender. Beyond the members of the contract a program may name
the thread that decided (``tid``, as gettid() gives it), so that system calls inside the decision can be found, and when (``t_ns``, as its
CLOCK_BOOTTIME reads, which in a time namespace is not the host's), where it reports later than it decides; waits inside a decision are known for
two seconds (agent/limiters/waits.py).

A full queue makes a blocking sender wait and a non-blocking one get EAGAIN (unix(7)): nothing is dropped on the way that
could be counted here. Senders that must not wait use MSG_DONTWAIT. How much fits is fixed when the socket is made.

A decision's time is when it was sent: what the program did afterwards is not part of it, however late the agent reads.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from agent.batch import Batch, make
from agent.clock import timens
from agent.columns import NULL_I64, fitted
from agent.errors import PRIVILEGE, AgentError
from agent.limiters.arrival import STAMP_BYTES, Arrival, stamp
from agent.tables import TABLES

TABLE = TABLES["limiter_decision"]
MAX_DATAGRAM_BYTES = 8192
QUEUE_LENGTH = 4096
_QLEN_SYSCTL = Path("/proc/sys/net/unix/max_dgram_qlen")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size) + STAMP_BYTES
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_IDENTITY_NS = 1_000_000_000
_LOSS_INTERVAL_NS = 1_000_000_000
_RESULTS = {name: code for code, name in enumerate(TABLE.by_name["result"].names)}
_FLOATS = ("cost", "limit_per_s", "burst", "remaining")
_INTEGERS = ("window_ns", "wait_ns", "duration_ns", "program_wall_ns", "tid")
_IDS = {"trace_id": re.compile(r"[0-9a-f]{32}"), "span_id": re.compile(r"[0-9a-f]{16}")}
_COLUMNS = ("t_ns", "pid", "proc_start_ns", "comm", "limiter_id", "result", "key", *_FLOATS, *_INTEGERS, *_IDS)
_UNKNOWN = {name: TABLE.by_name[name].null for name in _COLUMNS}


class Malformed(ValueError):
    """A datagram that is no decision."""


class Identity(NamedTuple):
    """Which process: its start in CLOCK_BOOTTIME ns, its command name, and how far its CLOCK_BOOTTIME is ahead of the host's; NULL_I64
    and b"" when it is gone."""

    start_ns: int
    comm: bytes
    ahead_ns: int


_NOBODY = Identity(NULL_I64, b"", NULL_I64)


def process_identity(pid: int) -> Identity:
    """From /proc/PID/stat (proc(5)), for any process of the host.

    The start is cut to a clock tick (10 ms): probes report it in ns, so that the two agree only when cut alike.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return _NOBODY
    end = text.rindex(b")")
    try:
        ahead_ns = timens.of(pid).boottime_ns
    except (OSError, ValueError):
        ahead_ns = NULL_I64
    return Identity(int(text[end + 2 :].split()[19]) * _TICK_NS, text[text.index(b"(") + 1 : end], ahead_ns)


class IntakeSocket:
    """Making the socket is for the privileged start; reading it is not."""

    @staticmethod
    def create(path: str | Path, queue_length: int = QUEUE_LENGTH) -> socket.socket:
        """A bound socket that everybody may send to (mode 0666). Raises AgentError where another agent holds the path.

        The kernel lets only net.unix.max_dgram_qlen (10 by default) datagrams wait, and reads that setting when a socket is
        made: it is raised for that moment where this is allowed.
        """
        path = Path(path)
        try:
            _remove_stale(path)
            server = _with_queue(queue_length)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            stamp(server)
            server.bind(str(path))
            path.chmod(0o666)
        except OSError as error:
            raise AgentError(
                f"the intake socket {path} cannot be made",
                why=str(error),
                remedy="run as root, or set TICKSCOPE_RUN_DIR to a directory that you can write",
                exit_code=PRIVILEGE,
            ) from error
        return server


class Intake:
    """Reads decisions from a socket of ``IntakeSocket``; a ``Source``, see agent.batch.

    keys: ``hashed`` stores 8 bytes of BLAKE2b as hex, ``clear`` the key itself, as its column holds it.
    max_datagrams: read by one drain at most; the socket stays readable when there are more.
    """

    name = "intake"

    def __init__(self, server: socket.socket, keys: str = "hashed", max_datagrams: int = 2048) -> None:
        server.setblocking(False)
        self._socket, self._max_datagrams = server, max_datagrams
        self._key: Callable[[str], bytes] = {"hashed": _hashed, "clear": _text}[keys]
        self._decode = json.JSONDecoder(parse_constant=_no_constant).decode
        self._identities: dict[int, tuple[int, Identity]] = {}
        self._arrival = Arrival()
        self._malformed = self._reported = 0
        self._waiting = False
        self._reported_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def fds(self) -> list[int]:
        return [self._socket.fileno()]

    def drain(self, now_ns: int) -> Iterator[Batch]:
        yield from self._read()
        yield from self._loss(now_ns, _LOSS_INTERVAL_NS)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterator[Batch]:
        """All that wait: for the end of a run. Who sends after it has begun gets EPIPE, so nothing is left behind unseen; what waits is bounded by
        the queue's length."""
        self._socket.shutdown(socket.SHUT_RD)
        self._waiting = True
        while self._waiting:
            yield from self._read()
        yield from self._loss(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)

    def _read(self) -> Iterator[Batch]:
        """At most ``max_datagrams``; ``_waiting`` tells whether there may be more."""
        columns: dict[str, list[Any]] = {}
        self._waiting = True
        self._arrival.begin()
        for _ in range(self._max_datagrams):
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(MAX_DATAGRAM_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                self._arrival.emptied()
                self._waiting = False
                break
            read_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            t_ns = self._arrival.sent_ns(ancillary, read_ns)
            pid = _sender(ancillary)
            identity = self._identity(pid, t_ns)
            try:
                if flags & socket.MSG_TRUNC:
                    raise Malformed("too long")
                values = self._parse(data)
                values["t_ns"] = _when(values.get("t_ns"), t_ns, read_ns, identity)
            except (ValueError, RecursionError):
                self._malformed += 1
                continue
            values["pid"], values["proc_start_ns"], values["comm"] = pid, identity.start_ns, identity.comm
            columns = columns or {name: [] for name in _COLUMNS}
            for name, column in columns.items():
                column.append(values.get(name, _UNKNOWN[name]))
        if columns:
            yield make(TABLE.name, len(columns["t_ns"]), source=TABLE.code("source", "socket"), **columns)

    def losses(self) -> dict[str, int]:
        """Datagrams that were no decisions, so far."""
        return {"malformed": self._malformed}

    def close(self) -> None:
        self._socket.close()

    def _parse(self, data: bytes) -> dict[str, Any]:
        """Raises ValueError (Malformed, JSON or UTF-8 errors) or RecursionError."""
        message = self._decode(data.decode())
        if not isinstance(message, dict):
            raise Malformed("not an object")
        limiter, result = message.get("limiter"), message.get("result")
        if not (isinstance(limiter, str) and limiter and isinstance(result, str) and result in _RESULTS):
            raise Malformed("limiter or result")
        values: dict[str, Any] = {"limiter_id": _text(limiter), "result": _RESULTS[result]}
        key = message.get("key")
        if key is not None:
            if type(key) not in (str, int):
                raise Malformed("key")
            values["key"] = self._key(str(key))
        for name in _FLOATS:
            if (value := message.get(name)) is not None:
                values[name] = _number(value, least=-(2.0**63) if name == "remaining" else 0)
        for name in ("t_ns", *_INTEGERS):
            if (value := message.get(name)) is not None:
                values[name] = int(_number(value))
        for name, form in _IDS.items():
            if (value := message.get(name)) is not None:
                if not (isinstance(value, str) and form.fullmatch(value)):
                    raise Malformed(name)
                values[name] = value.encode()
        return values

    def _identity(self, pid: int, now_ns: int) -> Identity:
        """Looked up once a second for each pid; of a process that ended meanwhile the last answer stands."""
        known = self._identities.get(pid)
        if known is not None and now_ns - known[0] < _IDENTITY_NS:
            return known[1]
        if len(self._identities) > 4096:
            self._identities.clear()
        try:
            identity = process_identity(pid)
        except Exception:  # noqa: BLE001 - what /proc says of one sender must not cost the others' datagrams
            identity = _NOBODY
        self._identities[pid] = (now_ns, identity)
        return identity

    def _loss(self, now_ns: int, interval_ns: int) -> Iterator[Batch]:
        if self._malformed == self._reported:
            self._reported_ns = now_ns
        elif now_ns - self._reported_ns >= interval_ns:
            count, self._reported = self._malformed - self._reported, self._malformed
            yield make(
                "loss",
                1,
                t_ns=now_ns,
                stage=TABLES["loss"].code("stage", "intake"),
                source=b"intake",
                count=count,
                from_ns=self._reported_ns,
                to_ns=now_ns,
            )
            self._reported_ns = now_ns


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The sender's pid; unknown for one in a pid namespace that is not visible from here.

    The buffer for ancillary data holds just these and the stamp: descriptors that a sender attaches are closed by the kernel.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(data)[0]) or NULL_I64
    return NULL_I64


def _when(said_ns: int | None, sent_ns: int, read_ns: int, identity: Identity) -> int:
    """When the decision was made, host's CLOCK_BOOTTIME: what the sender says, if its clock is known, else when it was sent. Raises Malformed
    for a time at which it cannot have been: not in its life, or still to come."""
    if said_ns is None or identity.ahead_ns == NULL_I64:
        return sent_ns
    made_ns = said_ns - identity.ahead_ns
    if not identity.start_ns <= made_ns <= read_ns:
        raise Malformed("t_ns")
    return made_ns


def _number(value: Any, least: float = 0) -> float | int:
    """A finite number that fits 64 bits; a limiter in debt may have a negative rest, all else counts from 0."""
    if (type(value) is int or (type(value) is float and isfinite(value))) and least <= value < 2**63:
        return value
    raise Malformed("number")


def _text(value: str) -> bytes:
    """UTF-8, as any text column of the table holds it."""
    return fitted(value.encode("utf-8", "replace"), 48)


def _hashed(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest().encode()


def _no_constant(name: str) -> float:
    raise Malformed(name)


def _remove_stale(path: Path) -> None:
    """Raises OSError where the path is no socket, or one that a live process reads."""
    if not path.exists() and not path.is_symlink():
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileExistsError(f"{path} is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError("another agent reads it")


def _with_queue(length: int) -> socket.socket:
    try:
        before = _QLEN_SYSCTL.read_text()
        if int(before) < length:
            _QLEN_SYSCTL.write_text(str(length))
    except OSError:  # read-only in most containers: the default length then
        before = ""
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    finally:
        if before and int(before) < length:
            _QLEN_SYSCTL.write_text(before)
