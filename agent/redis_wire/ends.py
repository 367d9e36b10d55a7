"""Names of Redis servers: where they listen."""

from __future__ import annotations

from agent.common.address import UNIX, addr_text, with_port
from agent.kernel import bpf
from agent.redis_wire.flows import Ends

_LENGTH, _PATH = 4, 108


def server_text(ends: Ends) -> str:
    """A server's address and port; ``unix`` for a Unix socket, ``?`` if unknown, as for a program that does TLS in its
    own memory.
    """
    if ends.server.startswith(UNIX):
        return "unix"
    return with_port(addr_text(ends.server), ends.server_port) if ends.server_port else "?"


class RedisServers:
    """The same, with the path of a Unix socket. paths: the map ``redis_paths``."""

    def __init__(self, paths: int) -> None:
        self._paths = paths
        self._known: dict[bytes, str] = {}

    def __call__(self, ends: Ends) -> str:
        if not ends.server.startswith(UNIX):
            return server_text(ends)
        number = ends.server[len(UNIX) :]
        if number not in self._known and (path := self._path(number)):
            if len(self._known) >= 1024:
                self._known.clear()
            self._known[number] = path
        return self._known.get(number) or server_text(ends)  # the kernel may have it again with the next request

    def _path(self, number: bytes) -> str:
        """The server's own path, with @ for the leading zero byte of an abstract name."""
        try:
            found = bpf.lookup(self._paths, number, _LENGTH + _PATH) or b""
        except OSError:
            return ""
        path = found[_LENGTH : _LENGTH + int.from_bytes(found[:_LENGTH], "little")]
        path = path.replace(b"\0", b"@") if path[:1] == b"\0" else path.partition(b"\0")[0]
        return path.decode("utf-8", "replace")
