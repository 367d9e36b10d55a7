"""Connections of the receiver's: whose they are, how many there may be, and that the agent knows them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

from agent.common.address import addr_bytes
from agent.posix.listener import NO_ROOM
from agent.posix.places import Places
from agent.receiver.link import AgentLink
from agent.receiver.wire import CONNECTIONS, ENDS, GONE, NUMBER, WHO
from exporters.peer import user

#: uid of who is not known: all such are one user.
NOBODY = (1 << 32) - 1
_AT_ONCE = 16
#: Without descriptors nobody is taken for so long.
_DEAF_S = 0.1


class OtlpSender:
    """One connection. uid: whose, by sock_diag."""

    def __init__(self, number: int, sock: socket.socket, uid: int) -> None:
        self.number, self.sock, self.uid = number, sock, uid
        self.task: asyncio.Task[None] | None = None
        self.known = asyncio.Event()

    async def named(self, within_s: float) -> None:
        """Once the agent knows whose it is, so that it may end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.known.wait(), within_s)


class Front:
    """Takes connections. serve: what is done with one; it may raise, and is cancelled where the connection's place is
    another user's.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.agent: AgentLink | None = None
        self.senders: dict[int, OtlpSender] = {}
        self._places: Places[OtlpSender] = Places(CONNECTIONS)
        self._last = 0

    def answered(self, number: int) -> None:
        """By the agent: it has looked whose this is."""
        if (sender := self.senders.get(number)) is not None:
            sender.known.set()

    def hear(self, listener: socket.socket, serve: Callable[[OtlpSender], Awaitable[None]]) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener, serve)

    def _accept(self, listener: socket.socket, serve: Callable[[OtlpSender], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    self.counts["no_descriptor"] += 1
                    loop.remove_reader(listener)
                    loop.call_later(_DEAF_S, self.hear, listener, serve)
                return
            sock.setblocking(False)
            uid = user(sock)
            self._last += 1
            sender = OtlpSender(self._last, sock, NOBODY if uid is None else uid)
            leaves = self._places.enter(sender.uid, sender)
            if leaves is not None:
                self.counts["refused" if leaves is sender else "displaced"] += 1
            if leaves is sender:
                sock.close()
                continue
            if leaves is not None and leaves.task is not None:
                leaves.task.cancel()
                self.senders.pop(leaves.number)
            self.senders[sender.number] = sender
            sender.task = loop.create_task(self._serve(sender, serve))

    async def _serve(self, sender: OtlpSender, serve: Callable[[OtlpSender], Awaitable[None]]) -> None:
        assert self.agent is not None
        try:
            theirs, ours = sender.sock.getpeername(), sender.sock.getsockname()
            ends = ENDS.pack(sender.number, addr_bytes(theirs[0]), theirs[1], addr_bytes(ours[0]), ours[1])
            await self.agent.send(WHO, ends)
            await serve(sender)
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            sender.sock.close()
            if self.senders.pop(sender.number, None) is not None:
                self._places.leave(sender.uid, sender)
            await self.agent.send(GONE, NUMBER.pack(sender.number))
