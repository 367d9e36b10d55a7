"""The receiver's end of the socket to the agent, within asyncio."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from agent.receiver.wire import KIND, NUMBER

#: For an agent that does not read.
_PATIENCE_S = 1.0


class AgentLink:
    """answered: called with a connection's number, of which the agent now knows whose it is. The process ends with the
    agent.
    """

    def __init__(self, sock: socket.socket, answered: Callable[[int], None]) -> None:
        sock.setblocking(False)
        self._sock, self._answered = sock, answered
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._loop.add_reader(sock, self._read)

    async def send(self, kind: int, data: bytes) -> bool:
        """False where the agent takes nothing."""
        async with self._lock:
            try:
                await asyncio.wait_for(self._send(KIND.pack(kind) + data), _PATIENCE_S)
            except TimeoutError:
                return False
            return True

    async def _send(self, message: bytes) -> None:
        while True:
            try:
                self._sock.send(message)
                return
            except BlockingIOError:
                await self._writable()
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)  # the agent has ended

    async def _writable(self) -> None:
        event = asyncio.Event()
        self._loop.add_writer(self._sock, event.set)
        try:
            await event.wait()
        finally:
            self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            answer = self._sock.recv(NUMBER.size)
        except BlockingIOError:
            return
        except ConnectionError:
            answer = b""
        if len(answer) != NUMBER.size:
            os._exit(0)
        self._answered(NUMBER.unpack(answer)[0])
