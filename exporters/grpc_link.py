"""The agent's end of the gRPC exporter. Requests go to a child process, since importing grpc costs about 20 MB.

The child (exporters/grpc_sender.py) is started with the first request, and restarted after its end with the lane's
growing pauses. It ends when this end of the socket closes, so also with the agent. Frames, both ways: a length (u32)
and that many bytes. The first is the configuration as JSON. A request is a signal (1 byte) and the serialised message;
an answer is an Outcome as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict

from agent.posix.supervisor import Supervised, how, spawn
from exporters.otlp_settings import Endpoint
from exporters.send import STATUSES, Outcome

SIGNALS = ("traces", "metrics", "logs")
_LENGTH = struct.Struct("!I")
#: Time for an answer beyond the request's own timeout; importing grpc takes about 1 s.
_GRACE_S = 5.0
_MAX_ANSWER_BYTES = 1 << 16


class GrpcLink:
    """One child for all signals. Only the exporter's worker thread uses it, except ``abort``."""

    def __init__(self, targets: Mapping[str, Endpoint]) -> None:
        self._targets = dict(targets)
        self._child = Supervised("otlp sender", "sends OTLP by gRPC")

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child.process else None

    def send(self, signal: str, data: bytes) -> Outcome:
        """Sends a request. Blocks for at most the target's timeout and some seconds."""
        timeout_s = self._targets[signal].timeout_s + _GRACE_S
        try:
            link = self._child.socket or self._start()
            link.settimeout(timeout_s)
            send_frame(link, bytes((SIGNALS.index(signal),)) + data)
            return _outcome(receive_frame(link, time.monotonic() + timeout_s, _MAX_ANSWER_BYTES))
        except OSError as error:
            return Outcome("retry", message=f"the gRPC process: {self._ended(error)}")

    def abort(self) -> None:
        """Ends the request under way, and the child; may be called from any thread."""
        if process := self._child.process:
            process.kill()

    def close(self) -> None:
        self._child.close(kill=True)

    def _start(self) -> socket.socket:
        parent_end, child_end = socket.socketpair()
        with child_end:
            fd = child_end.fileno()
            process = spawn(
                "exporters.grpc_sender",
                fd,
                fds=[fd],
                environment=os.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._child.adopt(process, parent_end)
        parent_end.settimeout(_GRACE_S)
        send_frame(parent_end, json.dumps({s: asdict(t) for s, t in self._targets.items()}).encode())
        return parent_end

    def _ended(self, error: OSError) -> str:
        code = self._child.process.poll() if self._child.process else None
        self.close()
        return f"ended ({how(code)})" if code is not None else f"{type(error).__name__}: {error}"


class GrpcSender:
    """exporters.send.Sender for one signal over a shared link."""

    def __init__(self, signal: str, link: GrpcLink) -> None:
        self._signal, self._link = signal, link

    def send(self, data: bytes) -> Outcome:
        return self._link.send(self._signal, data)

    def abort(self) -> None:
        self._link.abort()

    def close(self) -> None:
        self._link.close()


def _outcome(answer: bytes) -> Outcome:
    """Parses an answer. Raises ConnectionError for an invalid one."""
    try:
        outcome = Outcome(**json.loads(answer))
    except (TypeError, ValueError):
        raise ConnectionAbortedError("it sent what is no answer") from None
    if tuple(map(type, outcome)) != (str, int, str, float) or outcome.status not in STATUSES:
        raise ConnectionAbortedError("it sent what is no answer")
    return outcome


def send_frame(link: socket.socket, data: bytes) -> None:
    link.sendall(_LENGTH.pack(len(data)))
    link.sendall(data)


def receive_frame(link: socket.socket, deadline: float | None = None, most: int = (1 << 32) - 1) -> bytes:
    """One frame. Raises ConnectionError at the end of the stream and for more than ``most`` bytes, TimeoutError at the
    deadline (CLOCK_MONOTONIC).
    """
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size, deadline))
    if length > most:
        raise ConnectionAbortedError(f"it sent {length} bytes, {most} at most are an answer")
    return _exactly(link, length, deadline)


def _exactly(link: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            link.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = link.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("the other end closed")
        data += piece
    return bytes(data)
