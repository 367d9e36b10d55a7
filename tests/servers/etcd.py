"""An etcd cluster of a test's own, asked by its JSON gateway.

``python -m tests.servers.etcd copy FROM_PORT TO_PORT PREFIX``: copies the keys of a prefix that change; it
prints a line when it begins. ``write PORT PREFIX PER_SECOND``: puts new keys until it is killed.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.patience import until
from tests.ports import free_ports
from tests.servers import process
from tests.servers.process import ServerProcess, paced


def text(given: str | bytes) -> str:
    return base64.b64encode(given.encode() if isinstance(given, str) else given).decode()


def end_of(prefix: str) -> str:
    return text(prefix[:-1] + chr(ord(prefix[-1]) + 1))


def ask(port: int, what: str, given: dict[str, Any], token: str = "", timeout_s: float = 20) -> dict[str, Any]:
    """Raises AssertionError for an error, OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", f"/v3/{what}", json.dumps(given), {"Authorization": token} if token else {})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    assert answer.status == 200, found
    return found


class EtcdNode(ServerProcess):
    """A member. more: further arguments."""

    def __init__(self, directory: Path, name: str, port: int, peer: int, members: str, more: Sequence[str]) -> None:
        self.directory, self.name, self.port = directory / name, name, port
        self.directory.mkdir()
        scheme = "https" if "--cert-file" in more else "http"
        self.arguments = [
            *("--name", name, "--data-dir", str(self.directory / "data")),
            *("--listen-client-urls", f"{scheme}://127.0.0.1:{port}"),
            *("--advertise-client-urls", f"{scheme}://127.0.0.1:{port}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", members, "--log-level", "error", *more),
        ]

    def start(self, command: Sequence[str]) -> None:
        self.run([*command, *self.arguments])

    def ask(self, what: str, given: dict[str, Any] | None = None, token: str = "") -> dict[str, Any]:
        return ask(self.port, what, given or {}, token)

    def put(self, key: str, value: str | bytes = "", **more: Any) -> int:
        """Returns the revision."""
        return int(self.ask("kv/put", {"key": text(key), "value": text(value), **more})["header"]["revision"])

    def delete(self, key: str) -> None:
        self.ask("kv/deleterange", {"key": text(key)})

    def status(self) -> dict[str, Any]:
        return self.ask("maintenance/status")

    @property
    def leads(self) -> bool:
        found = self.status()
        return bool(found.get("leader", "0") == found["header"]["member_id"])

    def knows_leader(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError, ValueError):
            return "https" in self.arguments[5] or self.status().get("leader", "0") != "0"
        return False


class Etcd:
    """A cluster of ``n`` members on free ports. command: the beginning of their command line."""

    def __init__(
        self, directory: Path, n: int = 1, command: Sequence[str] = ("etcd",), more: Sequence[str] = (), name: str = "e"
    ) -> None:
        ports = free_ports(2 * n)
        members = ",".join(f"{name}{i}=http://127.0.0.1:{ports[n + i]}" for i in range(n))
        self.command = command
        directory.mkdir(exist_ok=True)
        self.nodes = [EtcdNode(directory, f"{name}{i}", ports[i], ports[n + i], members, more) for i in range(n)]
        for node in self.nodes:
            node.start(command)
        self.wait()

    @property
    def url(self) -> str:
        return "http://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def wait(self, without: EtcdNode | None = None) -> None:
        """Until all members know one leader."""
        for node in self.nodes:
            if node is not without:
                until(node.knows_leader, 120, 0.05, why=node.log.read_text)

    def remove(self, member_id: int, asked: EtcdNode) -> None:
        """Removes a member that has ended; it may have been the leader, so again until there is another one."""

        def removed() -> bool:
            try:
                ask(asked.port, "cluster/member/remove", {"ID": member_id}, timeout_s=5)
            except (OSError, AssertionError) as failure:
                return "member not found" in str(failure)
            return True

        until(removed, 120, 0.1)

    def leader(self) -> EtcdNode:
        return next(node for node in self.nodes if node.process.poll() is None and node.leads)

    def end(self) -> None:
        for node in self.nodes:
            node.end()


class Watcher:
    """A watcher of a prefix, of which nothing is read but the first answer."""

    def __init__(self, port: int, prefix: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"create_request": {"key": text(prefix), "range_end": end_of(prefix)}})
        head = f"POST /v3/watch HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall((head + body).encode())
        assert b"200" in self._socket.recv(4096)

    def close(self) -> None:
        self._socket.close()


client = partial(process.client, "tests.servers.etcd")


class _Kept:
    """A connection that is kept, as clients of etcd have it."""

    def __init__(self, port: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)

    def ask(self, what: str, given: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", f"/v3/{what}", json.dumps(given))
        found: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return found


def copy(source: str, target: str, prefix: str) -> None:
    here, there = _Kept(source), _Kept(target)
    print("begun", flush=True)
    since = 1
    while True:
        wanted = {"key": text(prefix), "range_end": end_of(prefix), "min_mod_revision": since}
        found = here.ask("kv/range", wanted)
        for one in found.get("kvs", ()):
            there.ask("kv/put", {"key": one["key"], "value": one.get("value", "")})
        since = int(found["header"]["revision"]) + 1
        time.sleep(0.1)


def write(port: str, prefix: str, per_s: str) -> None:
    connection = _Kept(port)
    for number, _ in enumerate(paced(float(per_s))):
        connection.ask("kv/put", {"key": text(f"{prefix}{number}"), "value": text(str(number))})


if __name__ == "__main__":
    {"copy": copy, "write": write}[sys.argv[1]](*sys.argv[2:])
