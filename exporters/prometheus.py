"""The Prometheus text endpoint: ``GET /metrics`` on 127.0.0.1, from the same store as OTLP.

Its own 180 lines, not prometheus_client: that has a registry of its own (each series kept twice), costs 5 MB, and its
server knows no limit for slow clients. One thread, a selector, few connections, one deadline for each; the agent's loop and a
client that sends nothing, byte by byte, or too much never meet.

Text format 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/. Names and units follow the OpenTelemetry
compatibility rules (exporters.metrics.Metric.prometheus). A classic histogram's ``le`` is the upper end of our bucket, which
is exclusive there: a value that is exactly a power of two counts one ``le`` higher.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.errors import AgentError
from exporters.aggregate import MetricStore, Series
from exporters.metrics import Metric
from exporters.values import Value

_MAX_CONNECTIONS = 8
_MAX_REQUEST_BYTES = 8192
_DEADLINE_S = 5.0
#: Bucket boundaries are the same in every scrape: 2^first .. 2^last of the metric's unit (1 us to 67 s; 1 us to 69 s).
_BOUNDS = {"us": (0, 26), "ns": (10, 36)}
_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class PrometheusEndpoint:
    """Serves until closed. Raises AgentError when the address cannot be bound.

    address: (host, port); port 0 takes a free one, see ``port``.  resource: exported as ``target_info``.
    """

    def __init__(self, address: tuple[str, int], store: MetricStore, resource: Mapping[str, str]) -> None:
        self._store, self._resource = store, dict(resource)
        try:
            self._listener = socket.create_server(address, backlog=16)
        except OSError as error:
            raise AgentError(f"cannot serve metrics on {address[0]}:{address[1]}", why=error.strerror or str(error),
                             remedy="see who has it (ss -ltnp), or set prometheus: to another address:port, or to '' for none") from error  # fmt: skip
        self.port: int = self._listener.getsockname()[1]
        self.refused = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for each in (self._listener, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        self._thread = threading.Thread(target=self._run, name="prometheus", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and every connection."""
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(1.0 if self._clients else None):
                if key.fileobj is self._woken:
                    for each in (*self._clients, self._listener, self._woken):
                        each.close()
                    self._selector.close()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._clients:
                    self._serve(key.fileobj)
            now = time.monotonic()
            for late in [s for s, c in self._clients.items() if now > c.deadline]:
                self._drop(late)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # it went away before it was accepted
        if len(self._clients) >= _MAX_CONNECTIONS:
            self.refused += 1
            client.close()
            return
        client.setblocking(False)
        self._clients[client] = _Client(time.monotonic() + _DEADLINE_S)
        self._selector.register(client, selectors.EVENT_READ)

    def _serve(self, client: socket.socket) -> None:
        state = self._clients[client]
        try:
            if not state.answer:
                piece = client.recv(_MAX_REQUEST_BYTES)
                state.request += piece
                if not piece:
                    self._drop(client)
                    return
                if b"\r\n\r\n" not in state.request and len(state.request) < _MAX_REQUEST_BYTES:
                    return
                state.answer = memoryview(self._answer(bytes(state.request)))
                self._selector.modify(client, selectors.EVENT_WRITE)
            state.answer = state.answer[client.send(state.answer) :]
        except BlockingIOError:
            return
        except OSError:
            state.answer = memoryview(b"")
        if not state.answer:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
        client.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if b"\r\n\r\n" not in request:
            status, body = b"431 Request Header Fields Too Large", b"request too large\n"
        elif method not in (b"GET", b"HEAD"):
            status, body = b"405 Method Not Allowed", b"only GET\n"
        elif path != b"/metrics":
            status, body = b"404 Not Found", b"see /metrics\n"
        else:
            status, body = b"200 OK", render(self._store, self._resource).encode()
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, _TYPE, len(body))
        return head if method == b"HEAD" else head + body


@dataclass
class _Client:
    deadline: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


def render(store: MetricStore, resource: Mapping[str, str]) -> str:
    """The whole page."""
    out = ["# HELP target_info Target metadata", "# TYPE target_info gauge", f"target_info{_labels(tuple(resource.items()))} 1"]
    for metric, series in store.collect():
        name = metric.prometheus
        out += [f"# HELP {name} {metric.description}", f"# TYPE {name} {metric.instrument}"]
        for s in series:
            out += _histogram(name, metric, s) if metric.instrument == "histogram" else [f"{name}{_labels(s.attributes)} {_number(s.value)}"]
    return "\n".join(out) + "\n"


def _histogram(name: str, metric: Metric, s: Series) -> Iterator[str]:
    first, last = _BOUNDS[metric.unit]
    below = s.buckets.cumsum()
    labels = _labels(s.attributes)[1:-1]
    comma = "," if labels else ""
    for power in range(first, last + 1):
        yield f'{name}_bucket{{{labels}{comma}le="{1 << power}"}} {int(below[power - 1]) if power else 0}'
    yield f'{name}_bucket{{{labels}{comma}le="+Inf"}} {s.count}'
    braces = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{braces} {_number(s.value)}"
    yield f"{name}_count{braces} {s.count}"


def _labels(attributes: tuple[tuple[str, Value], ...]) -> str:
    if not attributes:
        return ""
    return "{" + ",".join(f'{_label_name(k)}="{_escaped(v)}"' for k, v in attributes) + "}"


def _label_name(attribute: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in attribute)


def _escaped(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
