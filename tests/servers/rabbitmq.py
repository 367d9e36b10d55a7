"""A RabbitMQ node of a test's own, and its clients.

``python -m tests.servers.rabbitmq consume PORT QUEUE PREFETCH [SECONDS]``: a consumer that acknowledges each message
after that time; SECONDS ``never``: none. It prints a line when it consumes. ``publish PORT QUEUE PER_SECOND``:
publishes until it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import amqp

from tests.patience import PATIENCE, listening, returned
from tests.ports import free_ports
from tests.releases import CACHE, archive
from tests.servers import process
from tests.servers.certificates import certificates
from tests.servers.process import paced, until_stopped

LIB = Path("/usr/lib/rabbitmq/bin")
PLUGINS = "rabbitmq_management,rabbitmq_prometheus,rabbitmq_stream"


#: Runs a command in another root, with this system's devices, processes and names of hosts, and a directory.
IN_ROOT = """
root=$0 directory=$1
shift
mkdir -p "$root$directory"
touch "$root/etc/hosts"
exec unshare --mount --propagation private sh -c '
    for one in /dev /proc /etc/hosts "$1"; do mount --rbind "$one" "$0$one"; done
    root=$0
    shift
    exec chroot "$root" "$@"
' "$root" "$directory" "$@"
"""


def in_root(root: Path | None, directory: Path) -> tuple[str, ...]:
    """The beginning of a command line that runs in this root, with the directory; None: in this system."""
    return () if root is None else ("sh", "-c", IN_ROOT, str(root), str(directory))


class Rabbit:
    """A node on free ports. Statistics are made every second; ``interval_ms`` changes that. root: another system's, of
    which it is. joins: a node whose cluster it becomes a part of.
    """

    def __init__(
        self, directory: Path, interval_ms: int = 1000, root: Path | None = None, joins: Rabbit | None = None
    ) -> None:
        self.directory, self._root = directory, root
        self._wrap = in_root(root, directory)
        self.port, self.metrics_port, self.management_port, self.stream_port, self._epmd_port, dist, *tls = free_ports(
            8
        )
        self.tls_metrics_port, self.tls_management_port = tls
        if joins is not None:
            self._epmd_port = joins._epmd_port
            (directory / ".erlang.cookie").write_bytes((joins.directory / ".erlang.cookie").read_bytes())
            (directory / ".erlang.cookie").chmod(0o400)
        certificates(directory)
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
            f"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {self.metrics_port}\n"
            + "".join(
                f"{what}.ssl.ip = 127.0.0.1\n{what}.ssl.port = {port}\n{what}.ssl.cacertfile = {directory}/ca.pem\n"
                f"{what}.ssl.certfile = {directory}/server.pem\n{what}.ssl.keyfile = {directory}/server.key\n"
                for what, port in zip(("prometheus", "management"), tls, strict=True)
            )
            + f"stream.listeners.tcp.1 = 127.0.0.1:{self.stream_port}\n"
            f"collect_statistics_interval = {interval_ms}\ndisk_free_limit.absolute = 1MB\n"
            f"cluster_name = shop-{self.port}\n"
        )
        ticks = f"{{quorum_tick_interval,{interval_ms}}},{{stream_tick_interval,{interval_ms}}}"
        (directory / "advanced.config").write_text(f"[{{rabbit,[{ticks}]}}].\n")
        (directory / "enabled_plugins").write_text(f"[{PLUGINS}].\n")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ")},
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none",
        }
        # Not the daemon that the node would start and leave behind.
        epmd = ("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        self._epmd = self._run(*epmd) if joins is None else None
        self.start()
        if joins is not None:
            for command in (("stop_app",), ("join_cluster", joins.node), ("start_app",)):
                self.ctl(*command)

    @property
    def node(self) -> str:
        return f"test{self.port}@localhost"

    @property
    def url(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.metrics_port}?amqp={self.port}"

    @property
    def amqp(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def with_management(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.metrics_port}?management={self.management_port}"

    def start(self) -> None:
        self._server = self._run(str(LIB / "rabbitmq-server"), output=self.directory / "console")
        ports = self.port, self.metrics_port, self.management_port
        listening(*ports, process=self._server, log=self.directory / "console")
        returned(lambda: self.connect().close(), OSError)

    def signal(self, number: int) -> None:
        """To the shell and the virtual machine."""
        os.killpg(self._server.pid, number)

    def pause(self) -> None:
        """SIGSTOP; returns when all threads of the virtual machine are stopped."""
        self.signal(signal.SIGSTOP)
        until_stopped(self.machine())

    def machine(self) -> int:
        """Pid of the virtual machine."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                comm, _, rest = stat.read_text().partition(" (")[2].rpartition(") ")
                if comm == "beam.smp" and int(rest.split()[2]) == self._server.pid:
                    return int(stat.parent.name)
        raise ProcessLookupError

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._server.wait()

    def end(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
        if self._root is not None:
            with contextlib.suppress(OSError):
                os.removedirs(f"{self._root}{self.directory}")

    def ctl(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._wrap, str(LIB / "rabbitmqctl"), "-q", *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def manage(self, method: str, path: str, content: Any = None) -> Any:
        """Asks the management API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management_port}/api/{path}",
            None if content is None else json.dumps(content).encode(),
            {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"},  # guest:guest
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def connect(self, vhost: str = "/") -> Any:
        connection = amqp.Connection(
            f"127.0.0.1:{self.port}", "guest", "guest", virtual_host=vhost, confirm_publish=True, connect_timeout=10
        )
        connection.connect()
        return connection

    def publish(self, queue: str, n: int, vhost: str = "/", **properties: Any) -> None:
        """Confirmed messages by the default exchange."""
        with self.connect(vhost) as connection:
            channel = connection.channel()
            for i in range(n):
                channel.basic_publish(amqp.Message(str(i), **properties), routing_key=queue)

    def declare(self, queue: str, kind: str = "classic", vhost: str = "/", **arguments: Any) -> None:
        with self.connect(vhost) as connection:
            named = {name.replace("_", "-"): value for name, value in arguments.items()}
            connection.channel().queue_declare(
                queue, durable=True, auto_delete=False, arguments={"x-queue-type": kind, **named}
            )

    def counts(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers, as the queue itself says."""
        with self.connect() as connection:
            _, ready, consumers = connection.channel().queue_declare(queue, passive=True)
            return ready, consumers

    def _run(self, *command: str, output: Path | None = None) -> subprocess.Popen[bytes]:
        with open(output or os.devnull, "ab") as log:
            return subprocess.Popen(
                [*self._wrap, *command],
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


class StreamConsumer:
    """Subscribes to a stream from its first message by the stream protocol (port 5552 by default), and takes as many
    chunks as ``credit``; reads none of them.
    """

    def __init__(self, rabbit: Rabbit, stream: str, credit: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", rabbit.stream_port), 60)
        self._ask(0x11, struct.pack(">I", 0))  # PeerProperties
        self._ask(0x12, b"")  # SaslHandshake
        login = b"\0guest\0guest"
        self._ask(0x13, _text("PLAIN") + struct.pack(">I", len(login)) + login)
        self._receive()  # Tune
        self._send(struct.pack(">HHII", 0x14, 1, 0, 0))
        self._ask(0x15, _text("/"))  # Open
        self._ask(0x07, struct.pack(">B", 1) + _text(stream) + struct.pack(">HHI", 1, credit, 0))

    def __enter__(self) -> StreamConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _ask(self, key: int, content: bytes) -> None:
        self._send(struct.pack(">HHI", key, 1, key) + content)
        while True:
            answer, _, correlation, code = struct.unpack_from(">HHIH", self._receive())
            if answer == key | 0x8000:
                assert (correlation, code) == (key, 1)
                return

    def _send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(frame)) + frame)

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, n: int) -> bytes:
        data = self._socket.recv(n, socket.MSG_WAITALL)
        assert len(data) == n
        return data


def _text(given: str) -> bytes:
    return struct.pack(">H", len(given)) + given.encode()


def release_root(release: str, package: str = "rabbitmq-server") -> Path:
    """A root of another Debian release with a package; made once, from the archive of this host's release."""
    root = CACHE / f"{release}-{package.removesuffix('-server')}"
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as new:
            made = Path(new) / "root"
            options = ("--variant=apt", f"--include={package}", release, str(made), archive())
            subprocess.run(["mmdebstrap", "--quiet", *options], check=True)
            with contextlib.suppress(OSError):  # another run has made it
                made.rename(root)
    return root


client = partial(process.client, "tests.servers.rabbitmq")


def consume(port: str, queue: str, prefetch: str, seconds: str = "0") -> None:
    connection = amqp.Connection(f"127.0.0.1:{port}", "guest", "guest")
    connection.connect()
    channel = connection.channel()
    channel.basic_qos(0, int(prefetch), False)

    def take(message: Any) -> None:
        if seconds != "never":
            time.sleep(float(seconds))
            channel.basic_ack(message.delivery_tag)

    channel.basic_consume(queue, callback=take)
    print("begun", flush=True)
    while True:
        connection.drain_events()


def publish(port: str, queue: str, per_s: str) -> None:
    connection = amqp.Connection(f"127.0.0.1:{port}", "guest", "guest")
    connection.connect()
    channel = connection.channel()
    for _ in paced(float(per_s)):
        channel.basic_publish(amqp.Message("x" * 100), routing_key=queue)


if __name__ == "__main__":
    {"consume": consume, "publish": publish}[sys.argv[1]](*sys.argv[2:])
