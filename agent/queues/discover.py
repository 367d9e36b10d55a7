"""The brokers that this node listens on or talks to, from its sockets and processes. None of them is asked anything.

A broker that listens here is known by its process, or else by its usual port (as root all processes are visible). One
elsewhere is known by its usual port only.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.common.address import V4_MAPPED, addr_text, with_port
from agent.queues.catalogue import broker, names
from agent.queues.netlink import ESTABLISHED, LISTEN, tcp_sockets
from agent.queues.older import holders

#: Time limit of the walk through /proc.
_WALK_S = 2.0
_OURS = "tickscope-poll"
_HOST = re.compile(r"(?:^|//|@|[\s,])(\[[0-9a-fA-F:]+\]|[\w.-]+)(?::(\d+))?(?=[/,?\s]|$)")
#: Keys of a section that name servers.
_PLACES = re.compile("url|uri|server|host|address|broker|node|endpoint", re.IGNORECASE)


@dataclass(frozen=True)
class KnownBroker:
    """A kind of broker: its name (of the setting and of ``queue_lag.system``), its usual ports, and how the command
    line of its process begins.

    metrics: the usual port of its metrics, if the setting names that one. lacks: what to do if it is not open.
    endpoint: finds the port that the setting names (group ``port``; another one is not empty if it wants TLS) in the
    command line, the environment, or the file of settings that ``config`` finds in these.
    """

    name: str
    ports: tuple[int, ...]
    process: re.Pattern[str]
    metrics: int | None = None
    lacks: str = ""
    endpoint: re.Pattern[str] | None = None
    config: re.Pattern[str] | None = None


KINDS = (
    # A Sentinel may be the same program; it has no queues.
    KnownBroker("redis", (6379,), re.compile(r"(\S*/)?(redis|valkey|keydb)-server\b(?!.*(\[sentinel\]|--sentinel\b))")),
    KnownBroker(
        "kafka",
        (9092,),
        re.compile(r"(\S*/)?java\b.*\bkafka\.Kafka\b"),
        endpoint=re.compile(
            r"^[ \t]*listeners[ \t]*=(?:CONTROLLER://[^,\n]*,|[ \t])*\w+://[^,\n]*:(?P<port>\d+)", re.M
        ),
        config=re.compile(r"kafka\.Kafka (\S+)"),
    ),
    KnownBroker(
        "rabbitmq",
        (5672, 15692, 15672, 5671),
        re.compile(r"(\S*/)?beam(\.smp)?\b.*\brabbit"),
        15692,
        "its metrics' usual port 15692 is not open: rabbitmq-plugins enable rabbitmq_prometheus",
        re.compile(r"^[ \t]*prometheus\.(?:tcp|(?P<s1>ssl))\.port[ \t]*=[ \t]*(?P<port>\d+)", re.M),
        re.compile(r"^RABBITMQ_CONFIG_FILE=(\S+)", re.M),
    ),
    KnownBroker(
        "nats",
        (4222, 8222),
        re.compile(r"(\S*/)?nats-server\b"),
        8222,
        "it has no monitoring port: add `http: 127.0.0.1:8222` to its configuration",
        re.compile(
            r"(?:\s(?:-m(?P<s1>s?)|--?http(?P<s2>s?)_port)[ =]"
            r"|^\s*(?:http(?P<s3>s?)(?:_port)?|monitor_port)\b\s*[:=]?)\s*"
            r"[\"']?(?:[\w.-]*:|\[[\da-fA-F:]*\]:)?(?P<port>\d+)",
            re.M,
        ),
        re.compile(r"\s(?:-c|--?config)[ =](\S+)"),
    ),
    KnownBroker(
        "etcd",
        (2379,),
        re.compile(r"(\S*/)?etcd(\s|$)"),
        endpoint=re.compile(r"listen[-_]client[-_]urls[\"']?[=:\s]+[\"']?http(?P<s1>s?)://[^,\s]*:(?P<port>\d+)", re.I),
        config=re.compile(r"--config-file[ =](\S+)"),
    ),
    KnownBroker("postgresql", (5432,), re.compile(r"(\S*/)?(postgres|postmaster)\b")),
)
_CONFIG_BYTES = 256 << 10
_CELERY = re.compile(r"\bcelery\b.*\bworker\b")


@dataclass(frozen=True)
class SocketOwner:
    pid: int
    comm: str
    line: str  # the command line


@dataclass
class FoundBroker:
    """A broker. address: ``ip:port``. how: listens (here), or connects (a process here talks to it). by: what it is
    known by, process or port. processes: the broker's own (listens), or its clients. ports: all on which it listens.
    endpoint: what the setting names, if it is known; tls: by TLS. lacks: why there is nothing that it could name.
    """

    system: str
    address: str
    port: int
    how: str
    by: str
    processes: list[SocketOwner] = field(default_factory=list)
    ports: frozenset[int] = frozenset()
    endpoint: str = ""
    tls: bool = False
    lacks: str = ""
    configured: bool = False

    @property
    def supported(self) -> bool:
        return self.system in names()

    @property
    def setting(self) -> str | None:
        """The line for tickscope.yaml; None if this kind cannot be watched, or lacks what it takes."""
        server = _server(self) if self.supported and not self.lacks else None
        return None if server is None else f"{self.system}: [{server!r}]"


def discover(configured: Mapping[str, Iterable[Any]]) -> list[FoundBroker]:
    """The brokers, by kind and address. configured: the servers in the settings by kind. Raises OSError where the
    kernel refuses to list sockets.
    """
    sockets, _, _ = tcp_sockets()
    rows = [
        (
            int(one["state"]),
            _address(one["family"], one["src"].tobytes()),
            int(one["sport"]),
            _address(one["family"], one["dst"].tobytes()),
            int(one["dport"]),
            int(one["inode"]),
        )
        for one in sockets
        if one["state"] in (LISTEN, ESTABLISHED)
    ]
    by_inode, _ = holders({row[5]: row[5] for row in rows if row[5]}, _WALK_S)
    processes = {pid: _process(pid) for pids in by_inode.values() for pid in pids}

    def owners(inode: int) -> list[SocketOwner]:
        return [one for pid in sorted(by_inode.get(inode, ())) if (one := processes[pid]) is not None]

    found = list(_listening(rows, owners))
    here = {port: one.system for one in found for port in one.ports}
    listened = {row[2] for row in rows if row[0] == LISTEN}
    local = {row[1] for row in rows}
    found += _talked_to(
        rows, owners, lambda address, port: here.get(port) if _is_local(address, local) else None, listened
    )
    for one in found:
        one.configured = any(
            _same(one, host, port, local)
            for server in configured.get(one.system, ())
            for host, port in _hosts(server, _kind(one.system))
        )
    return sorted(found, key=lambda one: (one.system, one.how != "listens", one.address))


_Row = tuple[int, str, int, str, int, int]
_Owners = Callable[[int], list[SocketOwner]]


def _listening(rows: Iterable[_Row], owners: _Owners) -> Iterator[FoundBroker]:
    """The brokers that listen here: of each process the usual ports, or else its lowest one."""
    ports: dict[tuple[str, str, str], dict[int, tuple[str, list[SocketOwner]]]] = {}
    for state, address, port, _, _, inode in sorted(rows, key=lambda row: (row[2], ":" in row[1], row[1])):
        if state != LISTEN:
            continue
        its = owners(inode)
        known = next((kind for kind in KINDS if any(kind.process.match(one.line) for one in its)), None)
        kind = known or next((kind for kind in KINDS if port in kind.ports), None)
        if kind is not None:
            by = ("process", str(its[0].pid)) if known else ("port", str(port))
            ports.setdefault((kind.name, *by), {}).setdefault(port, (address, its))
    for (name, known_by, _), listeners in ports.items():
        usual = [port for port in _kind(name).ports if port in listeners] or [min(listeners)]
        address, its = listeners[usual[0]]
        at = with_port(address or "127.0.0.1", usual[0])
        one = FoundBroker(name, at, usual[0], "listens", known_by, its[:1], frozenset(listeners))
        if known_by == "process":
            named, one.tls = _endpoint(_kind(name), its[0], listeners)
            if named is not None:
                one.endpoint = with_port(listeners[named][0] or "127.0.0.1", named)
            elif _kind(name).metrics is not None:
                one.lacks = _kind(name).lacks
        yield one


def _endpoint(kind: KnownBroker, process: SocketOwner, listening: Collection[int]) -> tuple[int | None, bool]:
    """The listening port that the setting names, None if it is not known, and whether it wants TLS."""
    if kind.endpoint is not None:
        for text in _port_texts(kind, process):
            for found in kind.endpoint.finditer(text):
                if int(found["port"]) in listening:
                    named = found.groupdict()
                    return int(found["port"]), any(its for name, its in named.items() if name != "port")
    usual = (kind.ports[0] if kind.metrics is None else kind.metrics,)
    return next((port for port in usual if port in listening), None), False


def _port_texts(kind: KnownBroker, process: SocketOwner) -> Iterator[str]:
    """Where a process may name its ports: command line, configuration, environment."""
    environment = _file(f"/proc/{process.pid}/environ").replace("\0", "\n")
    yield from (process.line, environment)
    for text in (process.line, environment):
        if kind.config is not None and (named := kind.config.search(text)) is not None:
            above = "root" if named[1].startswith("/") else "cwd"
            path = f"/proc/{process.pid}/{above}/{named[1]}"
            yield _file(path) or _file(f"{path}.conf")


def _file(path: str) -> str:
    """The beginning of a file; empty if it cannot be read, or is none: a pipe would block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with open(fd, "rb") as file:
            return file.read(_CONFIG_BYTES).decode(errors="replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""


def _talked_to(
    rows: Iterable[_Row], owners: _Owners, here: Callable[[str, int], str | None], listened: set[int]
) -> Iterator[FoundBroker]:
    """The brokers elsewhere that processes here have connections to, and the Redis servers of Celery workers, since
    these have a setting of their own. here: the kind of a broker of this host at an address and port.
    """
    out: dict[tuple[str, str], FoundBroker] = {}
    for state, _, sport, peer, port, inode in rows:
        local = here(peer, port)
        system = local or next((kind.name for kind in KINDS if port in kind.ports), None)
        if state != ESTABLISHED or sport in listened or system is None:
            continue
        its = [one for one in owners(inode) if one.comm != _OURS]
        systems = [] if local else [system]
        if system == "redis" and any(_CELERY.search(one.line) for one in its):
            systems.append("celery")
        address = with_port(peer, port)
        for name in systems:
            one = out.setdefault((name, address), FoundBroker(name, address, port, "connects", "port"))
            one.processes += [process for process in its if process not in one.processes]
    yield from out.values()


def _kind(name: str) -> KnownBroker:
    """A kind by name; for Celery that of Redis, its usual broker."""
    return next((kind for kind in KINDS if kind.name == name), KINDS[0])


def _server(found: FoundBroker) -> str | None:
    """The server as in the settings, made from the kind's own example; None if the example has no place for it."""
    one = broker(found.system)
    host, _, port = (found.endpoint or found.address).rpartition(":")
    if found.system == "celery":
        given = f"redis://{host}:{port}"
    else:
        form = re.sub(r"\[[^]]*\]", "", one.form)
        match = re.match(r"(.*?\b)(?:host|broker|server)(?::(\w+))?", form)
        if match is None:
            return None
        # A port in the example that is not the first of the usual ones is another service, as RabbitMQ's metrics.
        other = int(match[2]) in _kind(found.system).ports[1:] if (match[2] or "").isdigit() else False
        given = f"{match[1]}{host}:{match[2] if other and not found.endpoint else port}"
        if found.tls:
            given = given.replace("http://", "https://", 1)
    try:
        one.parse(given)
    except Exception:  # noqa: BLE001 - whatever a kind says to it, this is no server of it
        return None
    return given


def _address(family: int, raw: bytes) -> str:
    """Text; empty for all addresses of the host."""
    return addr_text(V4_MAPPED + raw[:4] if any(raw[:4]) else bytes(16)) if family == socket.AF_INET else addr_text(raw)


def _process(pid: int) -> SocketOwner | None:
    """None if it has ended."""
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        line = Path(f"/proc/{pid}/cmdline").read_bytes()[:65536].replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    return SocketOwner(pid, comm, line or comm)


def _is_local(address: str, local: set[str]) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback or address in local
    except ValueError:
        return False


def _hosts(server: Any, kind: KnownBroker) -> Iterator[tuple[str, int]]:
    """(host, port) of a server in the settings: a text, or texts of a section, but of no key that may hold a secret."""
    if isinstance(server, Mapping):
        for key, value in server.items():
            if _PLACES.search(str(key)):
                yield from _hosts(value, kind)
    elif isinstance(server, (list, tuple)):
        for value in server:
            yield from _hosts(value, kind)
    elif isinstance(server, str):
        for match in _HOST.finditer(server.partition("?")[0]):
            yield match[1].strip("[]"), int(match[2] or kind.ports[0])


def _same(found: FoundBroker, host: str, port: int, local: set[str]) -> bool:
    """Whether a host and port of the settings are this broker."""
    usual = set(_kind(found.system).ports)
    if port not in {found.port, *found.ports} and not {port, found.port} <= usual:
        return False
    address = found.address.rpartition(":")[0].strip("[]")
    try:
        known = {info[4][0] for info in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except (OSError, UnicodeError):
        known = {host}
    if address in known:
        return True
    return found.how == "listens" and any(_is_local(str(one), local) for one in known)
