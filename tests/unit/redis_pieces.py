"""Records as the kernel's programs make them, of a connection that is played, and hostile ones: ``python -m
tests.unit.redis_pieces [INPUTS]`` tries a million.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import numpy as np

from agent.common.settings import read
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire
from agent.limiters.redis_settings import RedisLimiterSettings
from agent.limiters.script import RedisLimiter
from agent.limiters.scripted import Limiters
from agent.redis_wire.redis_reader import RedisReader
from agent.redis_wire.resp_stream import Garbage, RespStream

PIECE = Wire.read(BPF_DIR / "events.h", BPF_DIR / "redis_piece.h").dtype("redis_piece")
_SERVER = b"\0" * 10 + b"\xff\xff" + bytes((10, 0, 0, 1))
_CLIENT = b"\0" * 10 + b"\xff\xff" + bytes((10, 0, 0, 2))


def request(*words: bytes | str | float) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def declared(given: object) -> tuple[RedisLimiter, ...]:
    """The setting ``redis_limiter_scripts``."""
    return read(RedisLimiterSettings, {"redis_limiter_scripts": given}).own()


class Played:
    """One connection; what is sent becomes ``records``."""

    def __init__(self, flow: int = 1, start: int = (1 << 32) - 50, state: int = 0) -> None:
        self.flow, self.state = flow, state
        self.next = {False: start, True: 7_000}
        self.t_ns = 1_000_000
        self.records: list[np.ndarray] = []

    def send(
        self,
        data: bytes,
        *,
        reply: bool = False,
        cut: int = 384,
        gap: int = 0,
        unseen: bool = False,
        after_ns: int = 10_000,
        segment: bool = True,
    ) -> None:
        """A segment, in pieces; unseen: it is sent, but nobody tells."""
        seq, self.t_ns = self.next[reply], self.t_ns + after_ns
        self.next[reply] = (seq + len(data)) % (1 << 32)
        if unseen:
            return
        for at in range(0, len(data), cut):
            part = data[at : at + cut]
            one = np.zeros(1, PIECE)
            one["t_ns"], one["flow"], one["idle_ns"], one["state"] = self.t_ns, self.flow, after_ns, self.state
            one["seq"], one["ack"], one["end"] = (seq + at) % (1 << 32), self.next[not reply], self.next[reply]
            one["size"], one["reply"], one["first"], one["gap"] = len(part), reply, at == 0 or not segment, gap
            one["server_port"], one["client_port"] = 6379, 40_000
            one["server"][0], one["client"][0] = np.frombuffer(_SERVER, "u1"), np.frombuffer(_CLIENT, "u1")
            one["proc"]["pid"] = 4242
            one["proc"]["comm"] = b"shop"
            one["data"][0][: len(part)] = np.frombuffer(part, "u1")
            self.records.append(one)

    def rows(self, reader: RedisReader | None = None) -> np.ndarray:
        records, self.records = self.records, []
        batches = (reader or RedisReader(Limiters())).read(np.concatenate(records)) if records else []
        return batches[0].rows if batches else np.empty(0)


def _mutated(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) or 1)
        what = rng.randrange(4)
        if what == 0 and raw:
            raw[at] = rng.randrange(256)
        elif what == 1:
            raw[at:at] = rng.randbytes(rng.randint(1, 9))
        elif what == 2:
            del raw[at : at + rng.randint(1, 9)]
        else:
            raw[at:at] = rng.choice(
                (
                    b"\r\n",
                    b"$",
                    b"*",
                    b"*-1\r\n",
                    b"$99999999999\r\n",
                    b"*1048577\r\n",
                    b"%2\r\n",
                    b"|1\r\n",
                    b">1\r\n",
                    b"*1\r\n" * 20,
                )
            )
    return bytes(raw)


_GOOD: tuple[bytes, ...] = (
    request("EVALSHA", "a" * 40, 1, "rate:u", 5, 5, 1, 1),
    request("CL.THROTTLE", "u", 15, 30, 60, 1),
    request("EVAL", "return redis.call('incr', KEYS[1])", 1, "limit:u"),
    request("FCALL", "limit", 2, "a", "b", 3),
    request("INCR", "w:1") + request("EXPIRE", "w:1", 10),
    request("MULTI") + request("INCR", "w:2") + request("EXEC"),
    request("ZREMRANGEBYSCORE", "z:1", 0, 5) + request("ZCARD", "z:1"),
    b"PING\r\n",
    b"*4\r\n:1\r\n:4\r\n$2\r\n-1\r\n$3\r\n0.2\r\n",
    b"%1\r\n+a\r\n*2\r\n#t\r\n,1.5\r\n",
    b"*1\r\n*2\r\n:1\r\n:0\r\n",
    b"+QUEUED\r\n",
    b"-NOSCRIPT no\r\n",
    b"_\r\n",
    b"=5\r\ntxt:a\r\n",
    b"(123\r\n",
    b"|1\r\n+ttl\r\n:3\r\n:1\r\n",
    b"~1\r\n:1\r\n",
    b">2\r\n+a\r\n+b\r\n",
)


def attack(inputs: int, seed: int = 1) -> dict[str, int]:
    """So many hostile inputs: to the parser, in pieces of any size, and to connections. Nothing but Garbage may come
    out of the first, nothing at all out of the second.
    """
    rng, counts = random.Random(seed), {"messages": 0, "garbage": 0, "rows": 0}
    reader = RedisReader(Limiters())
    for n in range(inputs):
        data = (
            rng.randbytes(rng.randint(1, 60))
            if rng.random() < 0.1
            else _mutated(rng, b"".join(rng.choices(_GOOD, k=rng.randint(1, 3))))
        )
        if n % 4:
            stream = RespStream(requests=bool(n % 2))
            try:
                at = 0
                while at < len(data):
                    size = rng.randint(1, 40)
                    counts["messages"] += len(stream.feed(data[at : at + size]))
                    at += size
            except Garbage:
                counts["garbage"] += 1
        else:
            played = Played(rng.randrange(50), rng.randrange(1 << 32), rng.randrange(3))
            played.send(data, cut=rng.randint(1, 384), gap=rng.randrange(2), segment=rng.random() < 0.9)
            played.send(_mutated(rng, rng.choice(_GOOD)), reply=True, unseen=rng.random() < 0.1)
            if played.records:
                rng.shuffle(played.records)
                counts["rows"] += len(played.rows(reader))
    return counts


if __name__ == "__main__":
    wanted, began = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6, time.monotonic()
    reported: dict[str, Any] = attack(wanted)
    print(f"{wanted} inputs in {time.monotonic() - began:.0f} s: {reported}")
