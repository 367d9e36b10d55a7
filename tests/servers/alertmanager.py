"""A real Alertmanager (Debian's), and the webhook that it notifies."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.patience import listening
from tests.ports import free_port
from tests.servers.process import ServerProcess

PROGRAM = "prometheus-alertmanager"
#: resolve_timeout: after which an alert that nobody repeats ends.
CONFIG = """
global: {{resolve_timeout: {timeout}}}
route: {{receiver: hook, group_by: [incident], group_wait: 500ms, group_interval: 500ms, repeat_interval: 1h}}
receivers:
  - name: hook
    webhook_configs: [{{url: "http://127.0.0.1:{port}/", send_resolved: true}}]
"""


@contextlib.contextmanager
def pager() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The port of a receiver, and what it was notified of."""
    got = list[dict[str, Any]]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_port, got
    finally:
        server.shutdown()
        server.server_close()


class Alertmanager(ServerProcess):
    """prefix: of its URLs."""

    def __init__(self, directory: Path, pager_port: int, timeout: str = "5m", prefix: str = "") -> None:
        self.directory, self.port, self.url = directory, free_port(), ""
        self.url = f"http://127.0.0.1:{self.port}{prefix}"
        self._prefix = prefix
        (directory / "alertmanager.yml").write_text(CONFIG.format(timeout=timeout, port=pager_port))
        self.begin()

    def begin(self) -> None:
        self.run(
            [
                PROGRAM,
                f"--config.file={self.directory}/alertmanager.yml",
                f"--storage.path={self.directory}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
                f"--web.route-prefix=/{self._prefix.strip('/')}",
                "--cluster.listen-address=",
            ]
        )
        listening(self.port, process=self.process, log=self.log)

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are firing."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found
