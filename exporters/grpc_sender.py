"""``python -m exporters.grpc_sender FD``: sends OTLP requests over gRPC for exporters.grpc_link, whose frames come by
FD.

Uses the stubs of the OTLP/gRPC exporter, not its class: that imports the SDK (6 MB) and drops partial_success.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from agent.common.address import with_port
from agent.posix.signals import ENDING
from exporters.grpc_link import SIGNALS, receive_frame, send_frame
from exporters.otlp_settings import Endpoint
from exporters.send import Outcome, accepted, failed

#: https://opentelemetry.io/docs/specs/otlp/#failures; RESOURCE_EXHAUSTED only if the answer says when to retry.
_RETRYABLE = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
#: Texts for a message beyond the receiver's limit (4 MiB by default): gRPC in Go and in C, and in Java.
_TOO_LARGE = ("larger than max", "exceeds maximum size")
#: Of a proxy in front, which refuses by HTTP; gRPC has no code for it (UNKNOWN).
_TOO_LARGE_FOR_PROXY = "status: 413"
_STUBS: dict[str, Any] = {"traces": TraceServiceStub, "metrics": MetricsServiceStub, "logs": LogsServiceStub}
_OPTIONS = [("grpc.primary_user_agent", "tickscope"), ("grpc.max_reconnect_backoff_ms", 2000)]
_POLL_S = 0.1


class _Serialised:
    """A channel on which a stub's requests and answers are raw bytes: requests are serialised already."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, **_: object) -> grpc.UnaryUnaryMultiCallable:
        return self._channel.unary_unary(method)


class _Signal:
    """One signal's channel; serialised requests pass through unchanged."""

    def __init__(self, signal: str, target: Endpoint) -> None:
        url = urlsplit(target.endpoint)
        compression = grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression
        address = with_port(str(url.hostname), url.port or 4317)
        if target.insecure:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS, compression=compression)
        else:
            read = [
                Path(p).read_bytes() if p else None
                for p in (target.certificate, target.client_key, target.client_certificate)
            ]
            self._channel = grpc.secure_channel(
                address, grpc.ssl_channel_credentials(*read), options=_OPTIONS, compression=compression
            )
        self._export = _STUBS[signal](_Serialised(self._channel)).Export
        self._signal, self._target = signal, target

    def export(self, data: bytes, link: socket.socket) -> Outcome:
        """One attempt. Ends early, with the process, when the agent's end of the link closes."""
        future = self._export.future(data, timeout=self._target.timeout_s, metadata=self._target.headers)
        while not _finished(future):
            if select.select([link], [], [], 0)[0]:
                future.cancel()
                raise ConnectionResetError("the agent has gone")
        error = future.exception()
        if error is None:
            return accepted(self._signal, future.result())
        code, requested_s = error.code().name, _retry_delay(error)
        message = f"{code}: {error.details()}"[:200]
        retry = code in _RETRYABLE or (code == "RESOURCE_EXHAUSTED" and requested_s > 0)
        too_large = code == "RESOURCE_EXHAUSTED" and any(words in message for words in _TOO_LARGE)
        too_large |= code == "UNKNOWN" and message.endswith(_TOO_LARGE_FOR_PROXY)
        status = "too_large" if too_large else "retry" if retry else "refused"
        return Outcome(status, message=message, retry_after_s=requested_s)


def _finished(future: grpc.Future) -> bool:
    try:
        future.exception(timeout=_POLL_S)
    except grpc.FutureTimeoutError:
        return False
    return True


def _retry_delay(error: grpc.RpcError) -> float:
    """The pause of a google.rpc.RetryInfo in the answer's details, seconds; 0 if there is none or it is invalid."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    for key, value in error.trailing_metadata() or ():
        with contextlib.suppress(DecodeError):
            for detail in Status.FromString(value).details if key == "grpc-status-details-bin" else ():
                info = RetryInfo()
                if detail.Unpack(info):
                    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return 0.0


def main(fd: int) -> None:
    """Serves requests until the agent's end of the link closes. Ignores signals to the whole terminal or service, since
    the agent still sends its last requests then.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=fd) as link:
        signals: dict[str, _Signal] = {}
        try:
            configured = json.loads(receive_frame(link))
            while True:
                frame = receive_frame(link)
                name = SIGNALS[frame[0]]
                try:
                    if name not in signals:
                        fields = {**configured[name], "headers": tuple(map(tuple, configured[name]["headers"]))}
                        signals[name] = _Signal(name, Endpoint(**fields))
                    outcome = signals[name].export(frame[1:], link)
                except (OSError, ValueError) as error:
                    if isinstance(error, ConnectionError):
                        raise
                    outcome = failed(error)  # such as a missing certificate: its file is read again
                send_frame(link, json.dumps(outcome._asdict()).encode())
        except ConnectionError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
