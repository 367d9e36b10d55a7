"""A real Alertmanager (Debian's), what posts findings to it, and a receiver of its notifications."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from agent.common.clocks import boot_ns
from agent.common.sentence import ToWall
from exporters.alertmanager import AlertmanagerNotifier
from exporters.notify_settings import AlertmanagerSettings
from tests.found import events
from tests.patience import listening
from tests.ports import free_port
from tests.servers.process import ServerProcess

PROGRAM = "prometheus-alertmanager"


class Receiver:
    """A webhook."""

    def __init__(self) -> None:
        self._got: list[tuple[str, dict[str, Any]]] = []
        got = self._got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def to(self, path: str = "/") -> Sequence[dict[str, Any]]:
        """The notifications so far."""
        return [one for where, one in self._got if where == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def one_route(receiver: Receiver, timeout: str = "5m") -> str:
    """A configuration that sends everything to it at once. timeout: after which an alert that nobody repeats ends."""
    return f"""
global: {{resolve_timeout: {timeout}}}
route: {{receiver: hook, group_by: [incident], group_wait: 500ms, group_interval: 500ms, repeat_interval: 1h}}
receivers:
  - name: hook
    webhook_configs: [{{url: "http://127.0.0.1:{receiver.port}/", send_resolved: true}}]
"""


class Alertmanager(ServerProcess):
    """prefix: of its URLs."""

    def __init__(self, directory: Path, config: str, prefix: str = "") -> None:
        self.directory, self.port, self._prefix = directory, free_port(), prefix
        self.url = f"http://127.0.0.1:{self.port}{prefix}"
        (directory / "alertmanager.yml").write_text(config)
        self.begin()

    def begin(self) -> None:
        self.run(
            [
                PROGRAM,
                f"--config.file={self.directory}/alertmanager.yml",
                f"--storage.path={self.directory}/alertmanager",
                f"--web.listen-address=127.0.0.1:{self.port}",
                f"--web.route-prefix=/{self._prefix.strip('/')}",
                "--cluster.listen-address=",
                "--log.level=warn",
            ]
        )
        listening(self.port, process=self.process, log=self.log)

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are firing."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found


def wall_ahead(by_s: float = 0.0) -> ToWall:
    """The wall clock of a node, ahead of ours."""
    return lambda t_ns: t_ns + np.int64(time.time_ns() - boot_ns() + by_s * 1e9)


@contextlib.contextmanager
def notifying(
    url: str,
    hold_s: float = 0.0,
    by_s: float = 0.0,
    resend_s: float = 60.0,
    **settings: Any,
) -> Iterator[AlertmanagerNotifier]:
    """The agent's part that posts findings. by_s: how far the node's clock is ahead."""
    sink = AlertmanagerNotifier(
        "alertmanager",
        AlertmanagerSettings(hold_s=hold_s, **settings),
        events(wall_ahead(by_s)),
        wall_ahead(by_s),
        read_url=lambda: url,
        node={"instance": "node-7", "host_name": "node-7"},
        link=lambda one: f"https://link.example/{one.text('finding_id')}",
        resend_s=resend_s,
    )
    sink.start()
    try:
        yield sink
    finally:
        sink.close()
