"""Hostile inputs for what is read of kombu's data: ``python -m tests.unit.kombu_pieces [INPUTS]`` tries a million."""

from __future__ import annotations

import base64
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from agent.queues import celery_control, kombu

MESSAGE = {
    "headers": {"task": "mail.send", "eta": "2026-01-01T00:00:00+00:00", "redelivered": True},
    "properties": {"delivery_info": {"exchange": "", "routing_key": "celery", "redelivered": False}},
    "body": "e30=",
}
_TASK = json.dumps(MESSAGE).encode()
_MESSAGES = [json.dumps([MESSAGE, exchange, key]).encode() for exchange, key in (("", "celery"), ("topics", "a.b.c"))]
_STATS = base64.b64encode(json.dumps({"w@a": {"pid": 7, "prefetch_count": 4}, "w@b": {"error": "x"}}).encode()).decode()
_QUEUES = base64.b64encode(json.dumps({"w@a": [{"name": "celery"}, {"name": "mail"}]}).encode()).decode()
_REPLIES = [
    json.dumps({"headers": {"ticket": ticket}, "body": body}).encode()
    for ticket, body in (("stats", _STATS), ("active_queues", _QUEUES))
]
_BINDINGS = [b"celery\x06\x16\x06\x16celery", b"a.*.#\x06\x16^a\\..*\x06\x16mail"]
_WORDS = (b"*", b"#", b"a", b"", b"\xff")


def damaged(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.choice([b"", b"[", b'"', b"{", b"9" * 20, rng.randbytes(3), data[:at]])
        data = data[:4096] or bytearray(b"0")
    return bytes(data)


def attack(inputs: int, seed: int = 7) -> Counter[str]:
    """What became of them. None may raise."""
    rng, counts = random.Random(seed), Counter[str]()
    for _ in range(inputs):
        message = kombu.message(damaged(rng, rng.choice(_MESSAGES)))
        bound = kombu.binding(damaged(rng, rng.choice(_BINDINGS)))
        replies = [damaged(rng, one) if rng.random() < 0.8 else one for one in _REPLIES]
        counts["workers"] += len(celery_control.workers(replies)[0])
        counts["tasks"] += kombu.task(damaged(rng, _TASK)) is not None
        counts["messages"] += message is not None
        counts["bindings"] += bound is not None
        pattern = b".".join(rng.choices(_WORDS, k=rng.randrange(70)))
        key = b".".join(rng.choices(_WORDS, k=rng.randrange(70)))
        topic = kombu.Binding(pattern, b"q", rng.choice((rb"^[^\.]+$", rb"^.*?[^\.]$")))
        counts["routed"] += len(kombu.routed(b"e", key, {b"e": [topic, *([bound] if bound else [])]}))
    return counts


if __name__ == "__main__":
    wanted, began = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6, time.monotonic()
    reported: dict[str, Any] = attack(wanted)
    print(f"{wanted} inputs in {time.monotonic() - began:.0f} s: {reported}")
