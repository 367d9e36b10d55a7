"""Who talks to a Redis and may do so by TLS: a client that connects to its port, a server by its name. Their OpenSSL
gets its probes, for these processes alone.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agent.contracts import Stating
from agent.kernel import bpf
from agent.kernel.detach import close_aside
from agent.kernel.ring import SharedArray
from agent.kernel.steps import Steps, run
from agent.probes.beside.handshakes import LIBRARIES
from agent.probes.beside.redis_local import Clients
from agent.probes.beside.redis_ports import NAMES, servers
from agent.probes.beside.redis_users import ALL, LeftOut, RedisUser, birth, owned, room, seen
from agent.targets.asked import Ask, FileId, Release, Target

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.config import Config
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

#: Of one process, of which the kernel's side has room for 32,768 in all.
SERVERS_CONNECTIONS, CLIENTS_CONNECTIONS = 4096, 512
#: Between two searches for servers, and two looks at whether they still run.
SEARCH_NS, ALIVE_NS = 10_000_000_000, 1_000_000_000
#: After its first connection a program's library may not be known yet: it is looked at again, then with each search.
_RETRIES_NS = (20_000_000, 100_000_000, 300_000_000, 1_000_000_000, 3_000_000_000)
_RBIO, _BIO_FLAGS = 3, 5  # of a layout's list
_UNKNOWN = -1
_PROCESS = struct.Struct("<iiIIII")  # struct redis_tls_process
_TOLD = 3
_NONE = "no OpenSSL was found in it: if it talks by TLS, its decisions are not read"


class _Library(NamedTuple):
    """A file with an OpenSSL. data: offsets by program; layout: read BIO in an SSL, flags in a BIO; stamp: changes when
    it is written to.
    """

    fd: int
    data: dict[str, int]
    free: int | None
    layout: tuple[int, int]
    stamp: tuple[int, int]


class RedisTls(Stating):
    """A source without rows: pieces of what is read join those of plain connections, whose source reads them
    (agent/probes/beside/redis_wire.py). redis: that family.
    """

    name = "redis_tls"

    def __init__(
        self,
        family: Family,
        redis: Family,
        kernel: KernelSource,
        helper: Attacher,
        targets: Targets,
        find_servers: Callable[[], Iterable[int]] = servers,
    ) -> None:
        dtype = kernel.loaded.wire.dtype
        self._family, self._helper, self._targets, self._find_servers = family, helper, targets, find_servers
        self._processes = family.maps["redis_tls_processes"]
        self._connections = bpf.HashMap(
            family.maps["redis_tls_connections"], dtype("redis_tls_key"), dtype("redis_tls_connection")
        )
        self._owned = family.maps["redis_tls_owned"]
        self._counts = SharedArray(family.maps["redis_tls_counts"], dtype("redis_tls_counts")).values
        self._ports = SharedArray(redis.maps["redis_ports"], "<u8").values
        self._clients = Clients(kernel.loaded, self._reading)
        self._libraries: dict[FileId, _Library] = {}
        self._users: dict[int, RedisUser] = {}
        self._over, self._off = LeftOut(), False
        self._search_ns = self._alive_ns = 0
        kernel.listen("redis_tls_users", self._on_users)
        kernel.listen("exec_events", self._on_exec)
        ask = partial(Ask, "openssl", self._found, "redis_tls")
        targets.library(LIBRARIES, ask(companion=(b"libssl", b"libcrypto"), names=(b"libssl.so.3", b"libssl.so.1.1")))
        targets.exe(ask({"program": True}))

    def fds(self) -> list[int]:
        return []

    def use(self, config: Config) -> None:
        """From now on these settings: what nobody reads is not collected."""
        self._off = config.redis_limiters == "off"
        if self._off:
            self.close()
        self._say()
        self._search_ns = self._clients.next_ns = 0

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if self._off:
            return ()
        if now_ns >= self._alive_ns:
            self._alive_ns = now_ns + ALIVE_NS
            self._drop([pid for pid, one in self._users.items() if birth(pid) != one.birth])
        if now_ns >= self._search_ns:
            self._search_ns = now_ns + SEARCH_NS
            for pid in self._find_servers():
                self._add(pid, server=True)
            for one in self._users.values():
                one.next_ns = 0
        if now_ns >= self._clients.next_ns:
            others = self._clients.look(self._ports, now_ns)
            self._drop([pid for pid in self._clients.left if pid in self._users and not self._users[pid].server])
            for pid in others - {0, os.getpid()}:
                self._add(pid, server=False)
        for one in [one for one in self._users.values() if one.next_ns <= now_ns]:
            self._try(one, now_ns)
            self._say()
        return ()

    def _say(self) -> None:
        """In the family's state, where nothing is wrong with it: whom it reads, and who may be missing."""
        if self._family.state != "attached":
            return
        read = sum(bool(one.links) for one in self._users.values())
        others = [f"{one.owner.comm} (pid {one.pid})" for one in self._users.values() if one.why == _NONE]
        missing = (
            f"; no OpenSSL was found in {', '.join(others[:_TOLD])}{' and more' * (len(others) > _TOLD)}: what they ask"
            " by TLS is not read"
        )
        said = f"{read} processes that talk to a Redis are read{missing if others else ''}"
        self._family.reason = "redis_limiters is off" if self._off else said

    def state(self) -> dict[str, object]:
        """For ``status``."""
        users = [
            {
                "pid": one.pid,
                "comm": one.owner.comm,
                "role": "server" if one.server else "client",
                "read": bool(one.links),
                "why": one.why or None,
            }
            for one in self._users.values()
        ]
        return {
            "processes": users,
            "left_to_servers": len(self._clients.left),
            "left_out": self._over.n,
            "connections_left_out": int(self._counts["refused"][0]),
            "requests_unplaced": int(self._counts["unplaced"][0]),
        }

    def close(self) -> None:
        self._drop(list(self._users))
        self._say()

    def _on_users(self, records: np.ndarray) -> None:
        for pid in self._clients.connecting(records):
            self._add(pid, server=False)

    def _on_exec(self, records: np.ndarray) -> None:
        """Who is another program now has neither the SSL objects nor the files that are known of it."""
        pids, names = records["proc"]["pid"].tolist(), records["proc"]["comm"].tolist()
        began = zip(pids, records["t_ns"].tolist(), strict=True)
        self._drop({pid for pid, t_ns in began if pid in self._users and t_ns > self._users[pid].since_ns})
        for pid in {pid for pid, name in zip(pids, names, strict=True) if name in NAMES}:
            self._add(pid, server=True)

    def _reading(self) -> set[int]:
        """Servers that tell of all of their clients."""
        full = SERVERS_CONNECTIONS // 2
        return {one.pid for one in self._users.values() if one.server and one.links and self._connected(one) < full}

    def _connected(self, one: RedisUser) -> int:
        """How many of its connections are of interest."""
        known = bpf.lookup(self._processes, _key(one.pid), _PROCESS.size)
        return int(_PROCESS.unpack(known)[-1]) if known else 0

    def _add(self, pid: int, server: bool) -> None:
        known = self._users.get(pid)
        if self._off or (known is not None and (known.server or not server)):
            return
        if known is not None:  # a server by its new name
            self._drop([pid])
        one = seen(pid, server)
        if one is not None and room(self._users.values(), one):
            self._users[pid] = one
        elif one is not None:
            self._over.note(one)

    def _try(self, one: RedisUser, now_ns: int) -> None:
        """Gives it its probes as far as its libraries are known by now."""
        more = {file for file in self._targets.using(one.pid) if file in self._libraries} - one.probed
        one.next_ns = now_ns + _RETRIES_NS[one.tries] if one.tries < len(_RETRIES_NS) else self._search_ns
        one.tries += 1
        if not more:
            if not one.probed:
                one.why = _NONE
                self._targets.again(one.pid)
            return
        one.probed |= more
        layouts = {self._libraries[file].layout for file in one.probed}
        rbio, flags = layouts.pop() if len(layouts) == 1 else (_UNKNOWN, _UNKNOWN)
        most = SERVERS_CONNECTIONS if one.server else CLIENTS_CONNECTIONS
        try:
            value = _PROCESS.pack(rbio, flags, one.owner.uid, one.server, most, self._connected(one))
            bpf.update(self._processes, _key(one.pid), value)
        except OSError as error:
            one.probed -= more
            one.why = f"no probes: {error.strerror}"
            return
        self._count_servers()
        one.why = ""
        for file in more:
            run(
                self._attach(one, file, self._libraries[file]),
                partial(self._attached, one, file, self._libraries[file]),
            )

    def _attach(self, one: RedisUser, file: FileId, library: _Library) -> Steps[None]:
        """Returns first, so that no entry goes without its return."""
        programs, links = self._family.programs, list[int]()
        free = [library.free] if library.free is not None and "redis_tls_free" in programs else []
        n = 1 + len(free) + len(library.data)
        self._targets.shares.take(one.owner, n)
        kept, fd = False, -1
        try:
            fd = os.dup(library.fd)
            if _stamp(fd) != library.stamp:
                raise OSError(errno.ESTALE, "its OpenSSL was written to")  # its functions may be elsewhere
            attaching = partial(self._helper.attaching, pid=one.pid)
            links += yield from attaching(programs["redis_tls_return"], fd, list(library.data.values()), ret=True)
            if free:
                links += yield from attaching(programs["redis_tls_free"], fd, free)
            for role, offset in library.data.items():
                links += yield from attaching(programs[f"redis_tls_{role}"], fd, [offset])
            kept = self._users.get(one.pid) is one and self._libraries.get(file) is library  # else gone meanwhile
        finally:
            if fd >= 0:
                os.close(fd)
            if kept:
                one.links[file] = links
            else:
                self._close(one, links, n)

    def _attached(self, one: RedisUser, file: FileId, of: _Library, _: object, error: Exception | None) -> None:
        if self._libraries.get(file) is of:  # else it may be given those of what was written there by now
            one.probed -= {file} - one.links.keys()
        if error is not None:
            gone = isinstance(error, OSError) and error.errno == errno.ESRCH
            one.why = "" if gone else f"no probes: {getattr(error, 'strerror', '') or error}"

    def _close(self, one: RedisUser, links: list[int], n: int) -> None:
        close_aside(links)
        self._targets.shares.give_back(one.owner, n)

    def _drop(self, pids: Iterable[int]) -> None:
        gone = [self._users.pop(pid) for pid in pids]
        if not gone:
            return
        if any(one.server for one in gone):
            self._clients.forget()
        for one in gone:
            for links in one.links.values():
                self._close(one, links, len(links))
        try:
            for one in gone:
                bpf.delete(self._processes, _key(one.pid))
            keys = self._connections.read()[0]
            if len(mine := keys[np.isin(keys["pid"], [one.pid for one in gone])]):
                self._connections.drop(mine)
                left = owned(keys["pid"], self._users)
                for uid in {*(one.owner.uid for one in gone), ALL}:
                    bpf.update(self._owned, _key(uid), struct.pack("<q", left[uid]))
        except OSError as error:
            self._family.trouble("redis_tls", f"redis_tls: {error}")
        else:
            self._family.well("redis_tls")
        self._count_servers()
        self._say()

    def _count_servers(self) -> None:
        self._counts["servers"] = sum(one.server and bool(one.probed) for one in self._users.values())

    def _found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """A file with an OpenSSL: it is kept open, for processes that turn out to use it and to talk to a Redis."""
        yield from ()
        if not facts.get("data"):
            return None
        target.reserve(1, 1)
        layout = (facts["layout"][_RBIO], facts["layout"][_BIO_FLAGS])
        library = _Library(os.dup(target.fd), facts["data"], facts["free"], layout, _stamp(target.fd))
        self._libraries[target.file] = library

        def release() -> None:
            if self._libraries.get(target.file) is library:
                del self._libraries[target.file]
                for one in self._users.values():
                    one.probed.discard(target.file)
                    if links := one.links.pop(target.file, None):
                        self._close(one, links, len(links))
            os.close(library.fd)

        return release


def _key(pid: int) -> bytes:
    return struct.pack("<I", pid)


def _stamp(fd: int) -> tuple[int, int]:
    st = os.fstat(fd)
    return st.st_mtime_ns, st.st_size
