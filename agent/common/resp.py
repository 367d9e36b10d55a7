"""A connection to a Redis server: sends commands, reads replies, always within a deadline.

redis-py costs 19 MB of resident memory (asyncio, ssl); hiredis, its parser, costs 0.1 MB. TLS is imported for
``rediss://`` only. Protocol: RESP2, pipelined (redis.io/docs/latest/develop/reference/protocol-spec).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from agent.common.address import with_port
from agent.common.framing import ReplyBounds, TooMuch
from agent.common.lookup import connect
from agent.common.tls import IN_URL, TlsKeys, client_context, ended, error_text, unverified_by_us
from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    import ssl

_CLOSED = "connection closed by the server"
Reply = Any  #: bytes, int, None, list of these, or hiredis.ReplyError


class RedisDown(Exception):
    """The server gave no usable answer; the text is the reason, ``failure`` its kind (``queue_lag.failure``).
    ``refused_login``: it answers, but refuses the login.
    """

    def __init__(self, reason: str, refused_login: bool = False, failure: str = "other") -> None:
        super().__init__(reason)
        self.refused_login = refused_login
        self.failure = "login" if refused_login else failure


class ReplyTooLarge(RedisDown):
    """A reply was beyond the bounds of agent/common/framing.py; the server is well."""


@dataclass(frozen=True)
class RedisUrl:
    """``redis[s]://[user[:password]@]host[:port][/db][?streams=a,b*]`` or
    ``unix://[:password@]/path[?db=N&streams=a]``.

    ``redis[s]+sentinel://...@host[:26379],host2/SERVICE[/db]``: the primary that Sentinel names. ``redis[s]+cluster://``:
    the primaries of a Redis Cluster. addresses: all of them; the user and password are those of the servers,
    ``?sentinel_password=`` (and ``sentinel_user``) those of the Sentinels. queues: (option, name) of lists and sorted
    sets that are queues, ``?rq=default,mails``. expiring: (option, key or pattern) of keys with an expiry,
    ``?locks=lock:*``. message: fields of a stream's entries with their id, and their number, ``?id=order&seq=n``.
    tls_files: of ``rediss://``: authorities, certificate and key of the client, by redis-py's and Celery's options
    ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``; tls_keys: where the user sets them. read_password: what reads
    the password at each login, in place of ``password``; raises ValueError.
    """

    host: str = ""
    port: int = 6379
    path: str = ""
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    streams: tuple[str, ...] = ()
    queues: tuple[tuple[str, str], ...] = ()
    expiring: tuple[tuple[str, str], ...] = ()
    message: tuple[str, str] = ("", "")
    kind: str = ""
    service: str = ""
    addresses: tuple[tuple[str, int], ...] = ()
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)
    tls_files: tuple[str, str, str] = ("", "", "")
    tls_keys: TlsKeys = IN_URL
    read_password: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    @property
    def server(self) -> str:
        """``host:port`` or the socket's path, never with the password. ``SERVICE@host:port`` for Sentinel."""
        where = self.path or with_port(self.host, self.port)
        return f"{self.service}@{where}" if self.service else where

    @property
    def database(self) -> str:
        """The server, with the database unless that is 0: queues of one name in two of them are not the same."""
        return f"{self.server}/{self.db}" if self.db else self.server

    def at(self, host: str, port: int) -> RedisUrl:
        """The same of one server."""
        return replace(self, host=host, port=port, kind="", service="", addresses=())

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Parses a URL. Raises AgentError for an invalid one; the message leaves the password out."""
        try:
            url, *others = _separate(url)
            parts = urlsplit(url)
            query = parse_qs(parts.query)
            scheme, _, kind = parts.scheme.partition("+")
            if scheme not in ("redis", "rediss", "unix") or kind not in _KINDS or (kind and scheme == "unix"):
                raise _BadReply(f"it begins with {parts.scheme}:" if parts.scheme else "it names no scheme")
            sentinels = _SENTINELS if kind == "sentinel" else ()
            tls = set(_TLS_FILES) | {_TLS_CHECK} if scheme == "rediss" else set[str]()
            unknown = set(query) - {"streams", "db", "id", "seq", *DECLARED, *EXPIRING, *sentinels, *tls}
            if unknown:
                raise _BadReply(f"unknown option {min(unknown)!r}")
            queues = tuple((kind, name) for kind in DECLARED for name in _names(query, kind))
            expiring = tuple((kind, name) for kind in EXPIRING for name in _names(query, kind))
            if query.get(_TLS_CHECK, [""])[0].lower().removeprefix("cert_") not in ("", "required"):
                raise _BadReply("the certificate of the server is always verified: name its authorities, ssl_ca_certs=")
            if queues and kind == "cluster":
                raise _BadReply("only streams of a cluster are watched")
            message = query.get("id", [""])[0], query.get("seq", [""])[0]
            if message[1] and not message[0]:
                raise _BadReply("seq needs id: the field with the id of a message")
            if parts.scheme == "unix" and not parts.path:
                raise _BadReply("it has no socket path")
            service, _, below = parts.path.strip("/").partition("/") if kind == "sentinel" else ("", "", parts.path)
            if kind == "sentinel" and not service:
                raise _BadReply("it names no service: redis+sentinel://host:26379/SERVICE")
            db = query["db"][0] if "db" in query else below.strip("/") if parts.scheme != "unix" else ""
            port = 26379 if kind == "sentinel" else 6379
            addresses = ((parts.hostname or "127.0.0.1", parts.port or port), *_addresses(others, port))
            return cls(
                host="" if parts.scheme == "unix" else addresses[0][0],
                port=addresses[0][1],
                path=unquote(parts.path) if parts.scheme == "unix" else "",
                db=int(db or 0),
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                tls=scheme == "rediss",
                kind=kind,
                service=unquote(service),
                sentinel_user=query.get("sentinel_user", [""])[0],
                sentinel_password=query.get("sentinel_password", [""])[0],
                addresses=addresses if kind else (),
                streams=tuple(_names(query, "streams")),
                queues=queues,
                expiring=expiring,
                message=message,
                tls_files=tuple(query.get(name, [""])[0] for name in _TLS_FILES),  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise AgentError(
                "a Redis URL of the configuration cannot be read",
                why=(
                    str(error) if isinstance(error, _BadReply) else "its host, port or database number cannot be read"
                ),
                remedy=(
                    "write it as redis://host:6379/0?streams=orders,mail*; in a password / # ? @ : are %2F %23 %3F"
                    " %40 %3A"
                ),
                exit_code=USAGE,
            ) from None


_KINDS = ("", "sentinel", "cluster")
_SENTINELS = ("sentinel_user", "sentinel_password")
_TLS_FILES, _TLS_CHECK = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"), "ssl_cert_reqs"
#: Options whose names are lists and sorted sets that are queues (agent/queues/redis_lists.py).
DECLARED = ("lists", "sorted_sets", "sidekiq", "rq", "bullmq")
#: Options whose names are keys with an expiry (agent/queues/redis_expiring.py) -> ``timer_effect.kind``.
EXPIRING = {"locks": "lock", "leases": "lease", "dedup": "dedup", "ttl": "ttl"}


def _names(query: dict[str, list[str]], option: str) -> list[str]:
    return [name for name in ",".join(query.get(option, [])).split(",") if name]


def _separate(url: str) -> list[str]:
    """A URL of several servers as one of the first, and the addresses of the others."""
    found = re.fullmatch(r"(\w+\+\w+://(?:[^/?#]*@)?)([^/?#,]*)((?:,[^/?#,]*)+)(.*)", url, re.DOTALL)
    return [found[1] + found[2] + found[4], *found[3][1:].split(",")] if found else [url]


def _addresses(some: Iterable[str], port: int) -> Iterator[tuple[str, int]]:
    """``host[:port]`` each. Raises ValueError."""
    for one in some:
        parts = urlsplit(f"//{one}")
        yield parts.hostname or "127.0.0.1", parts.port or port


class _BadReply(ValueError):
    """An error with our own text; Python's could contain parts of a password."""


class RespClient:
    """One connection. Every failure closes it and raises RedisDown; the next command connects again.

    timeout_s bounds a whole pipeline, including connect and login. agent/common/framing.py bounds the size of a reply.
    """

    def __init__(self, url: RedisUrl, timeout_s: float = 0.5) -> None:
        self.url, self._timeout_s = url, timeout_s
        self._socket: socket.socket | None = None
        self._reader, self._bounds = hiredis.Reader(), ReplyBounds()
        self.peer: tuple[str, int] | None = None  #: address and port of the server, once connected over TCP

    def pipeline(self, commands: Sequence[tuple[bytes | str | int, ...]]) -> list[Reply]:
        """The replies in order; an error reply is a ``hiredis.ReplyError`` in its place. Raises RedisDown."""
        deadline = time.monotonic() + self._timeout_s
        fresh = self._socket is None
        try:
            if fresh:
                self._login(deadline)
                fresh = False
            return self._exchange(commands, deadline)
        except RedisDown:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise RedisDown(f"no answer within {self._timeout_s:g} s", failure="no_answer") from None
        except TooMuch as error:
            self.close()
            raise ReplyTooLarge(f"refused {error}") from None
        except (OSError, hiredis.ProtocolError, MemoryError) as error:
            self.close()
            keys = self.url.tls_keys
            words = error_text(error, keys) if isinstance(error, OSError) else str(error) or type(error).__name__
            if self.url.tls and (_failure(error) == "closed" or "EOF occurred" in str(error)):
                if not fresh:
                    raise RedisDown(_CLOSED, failure="closed") from None
                words = ended(keys)
            raise RedisDown(words, failure=_failure(error)) from None

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._reader, self._bounds = hiredis.Reader(), ReplyBounds()

    def _login(self, deadline: float) -> None:
        url = self.url
        password = self._password()
        if url.path:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(_left(deadline))
            self._socket.connect(url.path)
        else:
            self._socket = connect(url.host, url.port, deadline)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = self._socket.getpeername()[:2]
        if url.tls:
            self._socket.settimeout(_left(deadline))
            self._socket = _context(url).wrap_socket(self._socket, server_hostname=url.host)
        commands: list[tuple[bytes | str | int, ...]] = [("CLIENT", "SETNAME", "tickscope")]
        if password:
            commands.insert(0, ("AUTH", url.user, password) if url.user else ("AUTH", password))
        if url.db:
            commands.append(("SELECT", url.db))
        for command, reply in zip(commands, self._exchange(commands, deadline), strict=True):
            if isinstance(reply, hiredis.ReplyError) and "max number of clients" in str(reply):
                raise RedisDown(str(reply).removeprefix("ERR "), failure="refused")
            if isinstance(reply, hiredis.ReplyError) and (command[0] != "CLIENT" or str(reply).startswith("NOAUTH")):
                text = (
                    str(reply) if command[0] != "AUTH" else str(reply).partition(",")[0]
                )  # some servers repeat the password
                failure = "permission" if text.startswith("NOPERM") else "other"
                what = f"database {url.db}" if command[0] == "SELECT" else "login"
                raise RedisDown(f"{what} refused: {text}", command[0] != "SELECT", failure)

    def _password(self) -> str:
        if self.url.read_password is None:
            return self.url.password
        try:
            return self.url.read_password()
        except ValueError as error:
            raise RedisDown(str(error), failure="login") from None

    def _exchange(self, commands: Sequence[tuple[bytes | str | int, ...]], deadline: float) -> list[Reply]:
        assert self._socket is not None
        self._bounds.begin()
        self._socket.settimeout(_left(deadline))
        pack: Any = hiredis.pack_command  # its stub declares a tuple of one
        self._socket.sendall(b"".join(pack(c) for c in commands))
        replies: list[Reply] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is not False:
                replies.append(reply)
                continue
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(65536)
            if not data:
                raise RedisDown(_CLOSED, failure="closed")
            self._bounds.take(data)
            self._reader.feed(data)
        return replies


def _context(url: RedisUrl) -> ssl.SSLContext:
    """Raises RedisDown if a file cannot be used."""
    try:
        return client_context(*url.tls_files)
    except OSError as error:
        keys = url.tls_keys
        raise RedisDown(f"a file of {keys.authority} or {keys.certificate}: {error.strerror}") from None


def _failure(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "closed"
    if unverified_by_us(error):
        return "login"
    return "unreachable" if isinstance(error, OSError) else "other"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
