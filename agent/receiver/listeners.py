"""Where OTLP is taken: bound once, by the agent, and given to each process that takes it. So nobody else has the port
while one has ended and the next begins.
"""

from __future__ import annotations

import socket

from agent.receiver.settings import ReceiverConfig

#: An address that is taken is tried again.
_AGAIN_S = 2.0
_BACKLOG = 128
KINDS = ("http", "grpc")


class OtlpPorts:
    """failures: of those that cannot be had now, in words, by the setting."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._bound: dict[str, tuple[tuple[str, int], socket.socket]] = {}
        self._tried_s = -_AGAIN_S

    def use(self, config: ReceiverConfig, now_s: float) -> None:
        """Gives up those that are not wanted any more, and tries to have the others."""
        for kind in [kind for kind, (at, _) in self._bound.items() if at != getattr(config, kind)]:
            self._bound.pop(kind)[1].close()
        self._tried_s = -_AGAIN_S
        self.failures = {}
        self.missing(config, now_s)

    def missing(self, config: ReceiverConfig, now_s: float) -> bool:
        """Tries again, not too often, to have what is not there yet; whether any more is."""
        before = len(self._bound)
        wanted = {kind: at for kind in KINDS if (at := getattr(config, kind)) is not None and kind not in self._bound}
        if wanted and now_s - self._tried_s >= _AGAIN_S:
            self._tried_s = now_s
            for kind, at in wanted.items():
                try:
                    self._bound[kind] = at, _bound(at)
                    self.failures.pop(f"otlp_receiver.{kind}", None)
                except OSError as error:
                    self.failures[f"otlp_receiver.{kind}"] = f"cannot listen on {at[0]} port {at[1]}: {error.strerror}"
        return len(self._bound) > before

    def fds(self) -> dict[str, int]:
        return {kind: sock.fileno() for kind, (_, sock) in self._bound.items()}

    def close(self) -> None:
        while self._bound:
            self._bound.popitem()[1][1].close()


def _bound(address: tuple[str, int]) -> socket.socket:
    """Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
