"""Takes whole requests of OTLP, in whatever way they came: read, mapped to decisions, handed to the agent, answered."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agent.limiters.decision import Malformed
from agent.posix.places import Places
from agent.receiver.link import AgentLink
from agent.receiver.mapping import Mapper
from agent.receiver.reading import records
from agent.receiver.senders import OtlpSender
from agent.receiver.turns import DecisionRates, Turns
from agent.receiver.wire import NUMBER, PACKER, PIECE_ROWS, ROWS

#: Of a request, as it comes and unpacked; what it may hold.
MOST_BYTES, MOST_RECORDS = 2 << 20, 50_000
#: A request of so many bytes, unpacked, does not wait for one with more of them to be read, be that its own user's.
SMALL_BYTES = 256 << 10
#: For a whole request to come.
PATIENCE_S = 10.0
#: Requests of all users that are under way; one user but root has at most a quarter of them.
UNDER_WAY = 16
#: Records before others' connections are looked at.
_AT_ONCE = 256
#: For the agent to say whose a connection is.
_KNOWN_S = 1.0
#: Of gzip, one behind the other, in a request.
_MOST_MEMBERS = 16
_BUSY = "too much of this user is under way: try again"


class RequestRefused(Exception):
    """Of a whole request. kind: malformed, too_large, slow or busy, which is also what counts it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Taken(NamedTuple):
    """rejected: records that are no decision though they say so, or that there was no room for; why: of the first."""

    rejected: int = 0
    why: str = ""


class Desk:
    """counts: see agent/receiver/wire.py."""

    def __init__(self, mapper: Mapper, agent: AgentLink, counts: Counter[str]) -> None:
        self.counts = counts
        self._mapper, self._agent = mapper, agent
        self._turns, self._rates = (Turns(), Turns()), DecisionRates()
        self._under_way: Places[Callable[[], None]] = Places(UNDER_WAY)

    @contextmanager
    def under_way(self, sender: OtlpSender) -> Iterator[None]:
        """Around a request, before it is read. Raises RequestRefused where this user has enough of them, and in the
        place of one that another user's needs.
        """
        task = asyncio.current_task()
        assert task is not None
        displaced = False

        def leave() -> None:
            nonlocal displaced
            displaced = True
            task.cancel()

        leaves = self._under_way.enter(sender.uid, leave)
        if leaves is leave:
            raise RequestRefused("busy", _BUSY)
        if leaves is not None:
            leaves()
        try:
            yield
        except asyncio.CancelledError:
            if not displaced:
                raise
            task.uncancel()
            raise RequestRefused("busy", _BUSY) from None
        finally:
            if not displaced:
                self._under_way.leave(sender.uid, leave)

    async def take(
        self, sender: OtlpSender, signal: str, data: bytes, *, as_json: bool = False, packed: bool = False
    ) -> Taken:
        """A whole request. Raises RequestRefused."""
        self.counts["requests"] += 1
        if signal == "metrics":
            self.counts["metrics"] += 1
            return Taken()
        data = unpacked(data) if packed else data
        await sender.named(_KNOWN_S)  # before its turn, which others wait for
        async with self._turns[len(data) > SMALL_BYTES].of(sender.uid):
            rows, rejected, why = await self._mapped(signal, data, as_json)
            data = b""
            given = self._rates.take(sender.uid, len(rows))
            if given < len(rows):
                self.counts["over_rate"] += len(rows) - given
                rejected, why = rejected + len(rows) - given, why or "more decisions than a user may send a second"
            sent = await self._hand_over(sender, rows[:given])
        if sent < given:
            self.counts["unsent"] += given - sent
            rejected, why = rejected + given - sent, why or "the agent does not take them"
        self.counts["decisions"] += sent
        return Taken(rejected, why)

    async def _mapped(self, signal: str, data: bytes, as_json: bool) -> tuple[list[bytes], int, str]:
        """Packed rows; how many records could not be read, and why the first. Raises RequestRefused."""
        rows: list[bytes] = []
        read = seen = ignored = rejected = 0
        why = ""
        try:
            for record in records(signal, data, as_json):
                read += 1
                if read > MOST_RECORDS:
                    raise RequestRefused(
                        "too_large",
                        f"a request has {MOST_RECORDS} spans, events, logs and what holds them at most: send smaller"
                        " batches",
                    )
                if not read % _AT_ONCE:
                    await asyncio.sleep(0)
                if record is False:
                    continue
                seen += 1
                if record is None:
                    ignored += 1
                    continue
                try:
                    values = self._mapper.decision(record)
                except Malformed as error:
                    rejected, why = rejected + 1, why or f"{record.what}: {error}"
                    continue
                if values is None:
                    ignored += 1
                else:
                    rows.append(PACKER.pack((values,)))
        except Malformed as error:
            raise RequestRefused("malformed", str(error)) from error
        except MemoryError:
            raise RequestRefused("too_large", "the request takes too much memory: send smaller batches") from None
        self.counts["records"] += seen
        self.counts["ignored"] += ignored
        self.counts["invalid"] += rejected
        self.counts["no_share"] = self._mapper.no_share
        return rows, rejected, why

    async def _hand_over(self, sender: OtlpSender, rows: list[bytes]) -> int:
        """How many the agent took."""
        for at in range(0, len(rows), PIECE_ROWS):
            if not await self._agent.send(ROWS, NUMBER.pack(sender.number) + b"".join(rows[at : at + PIECE_ROWS])):
                return at
        return len(rows)


def unpacked(data: bytes) -> bytes:
    """Of gzip or deflate, and no more than a request may have. Raises RequestRefused."""
    whole = b""
    members = 0
    while data:
        if (members := members + 1) > _MOST_MEMBERS:  # what is behind each is copied
            raise RequestRefused("malformed", f"a request has {_MOST_MEMBERS} pieces of gzip at most")
        one = zlib.decompressobj(47)  # either of both, as its head says
        try:
            whole += one.decompress(data, MOST_BYTES + 1 - len(whole))
        except zlib.error as error:
            raise RequestRefused("malformed", f"no gzip: {str(error)[:60]}") from error
        if len(whole) > MOST_BYTES:
            raise RequestRefused(
                "too_large", f"a request has {MOST_BYTES} bytes at most when it is unpacked: send smaller batches"
            )
        if not one.eof:
            raise RequestRefused("malformed", "gzip that ends early")
        data = one.unused_data
    return whole
