"""Who talks to a Redis and may do so by TLS: a client that connects to its port, a server by its name. Their OpenSSL gets its probes, for these processes alone."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agent.common.clocks import boot_ns
from agent.contracts import Stating
from agent.kernel import bpf
from agent.kernel.detach import close_aside
from agent.kernel.ring import SharedArray
from agent.kernel.steps import Steps, run
from agent.probes.beside.handshakes import LIBRARIES
from agent.probes.beside.redis_ports import NAMES, servers
from agent.targets.asked import Ask, FileId, Release, Target

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

#: Processes with probes at a time: in all, of each user but root, and of these such as are called like a server.
MOST, A_USER, SERVERS_A_USER = 64, 16, 4
#: Of one process, of which the kernel's side has room for 32,768 in all.
SERVERS_CONNECTIONS, CLIENTS_CONNECTIONS = 4096, 512
#: Between two searches for servers, for clients whose connections are older than the agent, and two looks at whether they still run.
SEARCH_NS, SOCKETS_NS, ALIVE_NS = 10_000_000_000, 2_000_000_000, 1_000_000_000
#: So many times as long as it took to look through all sockets, they are not looked at again.
_REST = 500
#: After its first connection a program's library may not be known yet: it is looked at again, then with each search.
_RETRIES_NS = (20_000_000, 100_000_000, 300_000_000, 1_000_000_000, 3_000_000_000)
_RBIO, _BIO_FLAGS = 3, 5  # of a layout's list
_UNKNOWN = -1
_TOLD = 3
_NONE = "no OpenSSL was found in it: if it talks by TLS, its decisions are not read"


class _Library(NamedTuple):
    """A file with an OpenSSL. data: offsets by program; layout: read BIO in an SSL, flags in a BIO."""

    fd: int
    data: dict[str, int]
    free: int | None
    layout: tuple[int, int]


@dataclass
class _User:
    """A process that talks to a Redis, or is one. birth: as in /proc/PID/stat."""

    pid: int
    uid: int
    comm: str
    server: bool
    birth: bytes
    tries: int = 0
    next_ns: int = 0
    why: str = ""
    links: list[int] = field(default_factory=list)
    probed: set[FileId] = field(default_factory=set)


class RedisTls(Stating):
    """A source without rows: pieces of what is read join those of plain connections, whose source reads them (agent/probes/beside/redis_wire.py). redis: that family."""

    name = "redis_tls"

    def __init__(self, family: Family, redis: Family, kernel: KernelSource, helper: Attacher, targets: Targets,
                 find_servers: Callable[[], Iterable[int]] = servers) -> None:  # fmt: skip
        dtype = kernel.loaded.wire.dtype
        self._family, self._helper, self._targets, self._find_servers = family, helper, targets, find_servers
        self._processes = family.maps["redis_tls_processes"]
        self._connections = bpf.HashMap(
            family.maps["redis_tls_connections"], dtype("redis_tls_key"), dtype("redis_tls_connection")
        )
        self._counts = SharedArray(family.maps["redis_tls_counts"], dtype("redis_tls_counts")).values
        self._ports = SharedArray(redis.maps["redis_ports"], "<u8").values
        tcp = kernel.loaded.families.get("tcp")
        known = tcp.maps.get("tcp_sockets") if tcp is not None else None
        self._sockets = None if known is None else bpf.HashMap(known, np.dtype("<u8"), dtype("tcp_socket"))
        self._libraries: dict[FileId, _Library] = {}
        self._users: dict[int, _User] = {}
        self._over = 0
        self._search_ns = self._sockets_ns = self._alive_ns = 0
        kernel.listen("redis_tls_users", self._on_users)
        kernel.listen("exec_events", self._on_exec)
        ask = partial(Ask, "openssl", self._found, "redis_tls")
        targets.library(LIBRARIES, ask(companion=(b"libssl", b"libcrypto"), names=(b"libssl.so.3", b"libssl.so.1.1")))
        targets.exe(ask({"program": True}))

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns >= self._alive_ns:
            self._alive_ns = now_ns + ALIVE_NS
            for pid in [pid for pid, one in self._users.items() if _birth(pid) != one.birth]:
                self._drop(pid)
        if now_ns >= self._search_ns:
            self._search_ns = now_ns + SEARCH_NS
            for pid in self._find_servers():
                self._add(pid, server=True)
            for one in self._users.values():
                one.next_ns = 0
        if now_ns >= self._sockets_ns:
            for pid in self._connected():
                self._add(pid, server=False)
            self._sockets_ns = now_ns + max(SOCKETS_NS, _REST * (boot_ns() - now_ns))
        for one in [one for one in self._users.values() if one.next_ns <= now_ns]:
            self._try(one, now_ns)
            self._say()
        return ()

    def _say(self) -> None:
        """In the family's state, where nothing is wrong with it: whom it reads, and who may be missing."""
        if self._family.state == "attached":
            read = sum(bool(one.links) for one in self._users.values())
            others = [f"{one.comm} (pid {one.pid})" for one in self._users.values() if one.why == _NONE]
            missing = f"; no OpenSSL was found in {', '.join(others[:_TOLD])}{' and more' * (len(others) > _TOLD)}: what they ask by TLS is not read"
            self._family.reason = f"{read} processes that talk to a Redis are read{missing if others else ''}"

    def state(self) -> dict[str, object]:
        """For ``status``."""
        users = [{"pid": one.pid, "comm": one.comm, "role": "server" if one.server else "client", "read": bool(one.links), "why": one.why or None} for one in self._users.values()]  # fmt: skip
        return {"processes": users, "left_out": self._over, "connections_left_out": int(self._counts["refused"][0]), "requests_unplaced": int(self._counts["unplaced"][0])}  # fmt: skip

    def close(self) -> None:
        for pid in list(self._users):
            self._drop(pid)

    def _on_users(self, records: np.ndarray) -> None:
        for pid in set(records["proc"]["pid"].tolist()):
            self._add(pid, server=False)

    def _on_exec(self, records: np.ndarray) -> None:
        if not NAMES.isdisjoint(records["proc"]["comm"].tolist()):
            self._search_ns = 0

    def _connected(self) -> Iterator[int]:
        """Processes with connections to a Redis port, as far as the tcp family knows them."""
        if self._sockets is None:
            return
        ports = np.unpackbits(self._ports.view(np.uint8), bitorder="little").astype(bool)
        sockets = self._sockets.read()[1]
        wanted = ports[sockets["sock"]["dport"]] & (sockets["sock"]["role"] == 0) & (sockets["proc"]["pid"] < 1 << 22)
        yield from set(sockets["proc"]["pid"][wanted].tolist()) - {0, os.getpid()}

    def _add(self, pid: int, server: bool) -> None:
        known = self._users.get(pid)
        if known is not None:
            if server and not known.server:  # by its new name
                self._drop(pid)
            else:
                return
        birth = _birth(pid)
        try:
            uid = os.stat(f"/proc/{pid}").st_uid
            with open(f"/proc/{pid}/comm", "rb") as file:
                comm = file.read(16).decode(errors="replace").rstrip("\n")
        except OSError:
            return
        mine = [one for one in self._users.values() if one.uid == uid]
        servers_too = server and sum(one.server for one in mine) >= SERVERS_A_USER
        if len(self._users) >= MOST or (uid and (len(mine) >= A_USER or servers_too)):
            self._over += 1
            return
        self._users[pid] = _User(pid, uid, comm, server, birth)

    def _try(self, one: _User, now_ns: int) -> None:
        """Gives it its probes as far as its libraries are known by now."""
        more = {file for file in self._targets.using(one.pid) if file in self._libraries} - one.probed
        one.next_ns = now_ns + _RETRIES_NS[one.tries] if one.tries < len(_RETRIES_NS) else self._search_ns
        one.tries += 1
        if not more:
            if not one.links:
                one.why = _NONE
                self._targets.again(one.pid)
            return
        layouts = {self._libraries[file].layout for file in one.probed | more}
        one.probed |= more
        rbio, flags = layouts.pop() if len(layouts) == 1 else (_UNKNOWN, _UNKNOWN)
        most = SERVERS_CONNECTIONS if one.server else CLIENTS_CONNECTIONS
        value = struct.pack("<iiIIII", rbio, flags, one.uid, one.server, most, 0)
        try:
            bpf.update(self._processes, _key(one.pid), value)
        except OSError as error:
            one.why = f"no probes: {error.strerror}"
            return
        self._count_servers()
        libraries = [self._libraries[file] for file in more]
        run(self._attach(one, libraries), lambda _, error: self._attached(one, error))

    def _attach(self, one: _User, libraries: list[_Library]) -> Steps[None]:
        """Returns first, so that no entry goes without its return."""
        programs = self._family.programs
        for library in libraries:
            file, links = os.dup(library.fd), list[int]()
            try:
                attaching = partial(self._helper.attaching, pid=one.pid)
                links += yield from attaching(programs["redis_tls_return"], file, list(library.data.values()), ret=True)
                if library.free is not None and "redis_tls_free" in programs:
                    links += yield from attaching(programs["redis_tls_free"], file, [library.free])
                for role, offset in library.data.items():
                    links += yield from attaching(programs[f"redis_tls_{role}"], file, [offset])
            except OSError:
                close_aside(links)
                raise
            finally:
                os.close(file)
            if self._users.get(one.pid) is not one:  # gone meanwhile
                close_aside(links)
                return
            one.links += links

    def _attached(self, one: _User, error: Exception | None) -> None:
        if error is None:
            one.why = ""
            return
        one.probed.clear()
        gone = isinstance(error, OSError) and error.errno == errno.ESRCH
        one.why = "" if gone else f"no probes: {getattr(error, 'strerror', '') or error}"

    def _drop(self, pid: int) -> None:
        one = self._users.pop(pid)
        close_aside(one.links)
        try:
            bpf.delete(self._processes, _key(pid))
            keys = self._connections.read()[0]
            if len(mine := keys[keys["pid"] == pid]):
                self._connections.drop(mine)
        except OSError as error:
            self._family.trouble("redis_tls", f"redis_tls: {error}")
        self._count_servers()

    def _count_servers(self) -> None:
        self._counts["servers"] = sum(one.server and bool(one.probed) for one in self._users.values())

    def _found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """A file with an OpenSSL: it is kept open, for processes that turn out to use it and to talk to a Redis."""
        yield from ()
        if not facts.get("data"):
            return None
        target.reserve(1, 1)
        layout = facts["layout"]
        library = _Library(os.dup(target.fd), facts["data"], facts["free"], (layout[_RBIO], layout[_BIO_FLAGS]))
        self._libraries[target.file] = library

        def release() -> None:
            if self._libraries.get(target.file) is library:
                del self._libraries[target.file]
            os.close(library.fd)

        return release


def _key(pid: int) -> bytes:
    return struct.pack("<I", pid)


def _birth(pid: int) -> bytes:
    """Empty for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(1024).rpartition(b")")[2].split()
        return b"" if fields[0] in (b"Z", b"X") else fields[19]
    except (OSError, IndexError):
        return b""
