"""Converts answered Redis requests to rows of ``limiter_decision``. Pure.

The meaning of each limiter's replies is declared (agent/limiters/scripts/). For an undeclared script, a decision is
read only if its text was seen, or its key looks like a limiter's.
"""

from __future__ import annotations

import re
from _sha1 import sha1  # type: ignore[import-not-found]  # hashlib would load OpenSSL
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64, fitted
from agent.common.recent import Recent
from agent.limiters.decision import hashed
from agent.limiters.reading import ALLOWED, DELAYED, ERROR, REFUSED
from agent.limiters.script import ASKING, COUNTING, ENDING, SORTED, RedisCall, RedisLimiter
from agent.limiters.scripted import Limiters
from agent.redis_wire.counters import RedisCounters
from agent.redis_wire.ends import server_text
from agent.redis_wire.flows import Ends, Flow, RedisExchange
from agent.redis_wire.guess import (
    FUNCTIONS,
    counts,
    guessed,
    inverted,
    is_limiter_like,
    is_single_value,
    plausible,
    returns_count,
)
from agent.redis_wire.resp_stream import Cut, ReplyError
from agent.redis_wire.unknown import UnknownScripts
from agent.redis_wire.windows import Windows, stamped
from agent.tables import TABLES

_TABLE = TABLES["limiter_decision"]
_SOURCE = _TABLE.code("source", "redis")
_CLIENT, _SERVER = (_TABLE.code("role", name) for name in ("client", "server"))
_SCRIPTS, _SEEN, _TEXT = 1024, 8192, 8192
#: Django's caches put a version first.
_PREFIX = re.compile(rb"(?::\d{1,3}:)?[^:/.{|]{1,24}[:/.{|]")


class RedisDecisions:
    """limiters: known ones. want_whole(connection): all of it is to be read, since limiters' requests follow others.
    key: how a key is stored (bytes -> bytes). called: a server's name. client_of: the other end's process, if only the
    server's was observed. again: exchanges that were observed at both ends.
    """

    def __init__(
        self,
        limiters: Limiters,
        want_whole: Callable[[Flow], None] = lambda _: None,
        key: Callable[[bytes], bytes] = hashed,
        called: Callable[[Ends], str] = server_text,
        client_of: Callable[[Ends], np.void | None] = lambda _: None,
    ) -> None:
        self._limiters, self._want_whole, self.key, self._called = limiters, want_whole, key, called
        self._client_of = client_of
        self._texts = Recent[str, bytes](_SCRIPTS)
        self._others, self._counting = Recent[str, None](_SCRIPTS), Recent[str, None](_SCRIPTS)
        self._meant = Recent[str, tuple[bool, bool]](_SCRIPTS)
        self._seen = Recent[tuple[int, int, bytes], Flow](_SEEN)
        self._windows = Windows(limiters)
        self._own = frozenset(one.encode() for one in limiters.commands() - set(COUNTING + ENDING + ASKING + SORTED))
        self.again, self.unknown, self.counters = 0, UnknownScripts(), RedisCounters()

    def rows(self, exchanges: Iterable[RedisExchange]) -> list[Batch]:
        """One batch, in the order of the replies; none without decisions."""
        found: list[tuple[RedisExchange, dict[str, Any]]] = []
        for one in exchanges:
            for exchange, values in self._decided(one):
                if self._first_time(exchange):
                    flow, flow.idle_commands = exchange.flow, 0
                    if exchange.behind:
                        self._want_whole(flow)
                    found.append((exchange, values))
        if not found:
            return []
        rows = _TABLE.empty(len(found))
        rows["source"] = _SOURCE
        for row, (exchange, values) in zip(rows, found, strict=True):
            row["t_ns"] = exchange.ended_ns
            row["duration_ns"] = max(exchange.ended_ns - exchange.begun_ns, 0)
            row["sample_rate"] = 1 / (1 + exchange.skipped)
            flow = exchange.flow
            if flow.client_proc is None and flow.ends is not None:
                flow.client_proc = self._client_of(flow.ends)
            _who(row, flow)
            for name, value in values.items():
                row[name] = value
        return [Batch(_TABLE.name, rows)]

    def _first_time(self, exchange: RedisExchange) -> bool:
        """False for the second observation of an exchange, whose connection has both ends here, in different
        namespaces.
        """
        key = (*exchange.ends, exchange.words[-1][-16:])
        before = self._seen.get(key)
        if before is not None and before is not exchange.flow:
            self.again += 1
            return False
        self._seen[key] = exchange.flow
        return True

    def _decided(self, exchange: RedisExchange) -> Iterable[tuple[RedisExchange, dict[str, Any]]]:
        command = exchange.command
        if command in (b"SCRIPT", b"FUNCTION"):
            self._learn(exchange)
        elif command in self._own:
            values = self._of_script(exchange)
            if values is not None:
                yield exchange, values
                return
        if command not in self._own or command == b"SET":  # a user's own, of other keys
            age_ns, expiry_ns = self.counters.unexpired(exchange)
            for one, limiter, window in self._windows.take(exchange):
                values = self._of_window(one, limiter, window)
                if age_ns and one is exchange:
                    values = {"window_ns": expiry_ns} | values | {"unexpired_ns": age_ns}
                yield one, values

    def _learn(self, exchange: RedisExchange) -> None:
        words = exchange.words
        taken = isinstance(exchange.reply, bytes) and not isinstance(exchange.reply, ReplyError)
        if len(words) > 2 and words[1].upper() == b"LOAD" and taken:
            if exchange.command == b"FUNCTION":
                for name in FUNCTIONS.findall(words[-1][:65536])[:64]:
                    self._keep(_there(exchange, name.decode()), words[-1])
            elif not isinstance(words[-1], Cut):
                self._keep(sha1(words[-1]).hexdigest(), words[-1])

    def _keep(self, script: str, text: bytes) -> None:
        """script: its hash, or (server, function name) (_there), whose text may change."""
        text = text[:_TEXT]
        if self._texts.get(script) == text:
            return
        self._texts[script] = text
        self._counting.pop(script, None), self._meant.pop(script, None)
        if returns_count(text):
            self._counting[script] = None

    def _meaning(self, script: str, text: bytes | None) -> tuple[bool, bool]:
        """Whether 1 is a refusal, and whether the second element is the remainder, by the script's text."""
        if text is None:
            return False, True
        if script not in self._meant:
            self._meant[script] = inverted(text), not is_single_value(text)
        return self._meant[script]

    def call(self, exchange: RedisExchange) -> RedisCall | None:
        """The request as a call; None if it is incomplete."""
        words, command = exchange.words, exchange.command.decode("latin-1")
        if not command.startswith(("EVAL", "FCALL")):
            return RedisCall(command, "", words[1:2], words[2:], exchange.reply) if len(words) > 1 else None
        if len(words) < 3 or not words[2].isdigit() or len(words[2]) > 4:
            return None
        if command in ("EVAL", "EVAL_RO"):
            script = sha1(words[1]).hexdigest()
            if not isinstance(words[1], Cut):
                self._keep(script, words[1])
        else:
            script = words[1][:64].decode("utf-8", "replace")
            script = script.lower() if command.startswith("EVALSHA") else script
        first = 3 + int(words[2])
        return RedisCall(command, script, words[3:first], words[first:], exchange.reply)

    def _of_script(self, exchange: RedisExchange) -> dict[str, Any] | None:
        call = self.call(exchange)
        if call is None:
            return None
        self._windows.added(exchange, call)
        reply, there = exchange.reply, _there(exchange, call.script)
        script = there if call.command.startswith("FCALL") else call.script
        text = self._texts.get(script)
        if isinstance(reply, ReplyError) and reply.startswith((b"NOSCRIPT", b"MOVED", b"ASK", b"LOADING")):
            return None  # the client asks again
        found = self._limiters.find(call, text)
        if found is not None:
            limiter, call = found
            if not limiter.decides:
                return None
            name, wire = limiter.library, read(limiter, call)
        elif (
            call.command.startswith(("EVAL", "FCALL"))
            and there not in self._others
            and is_limiter_like(call, text)
            and not self._limiters.owns(call)
        ):
            if not plausible(reply):
                self._others[there] = None
                return None
            if counts(reply):
                self._counting[there] = None
            name = f"redis script {call.script[:12]}"
            counting = not self._counting.keys().isdisjoint((script, there))
            wire = {"cost": 1.0} if counting else guessed(call, *self._meaning(script, text))
            limiter = None
        else:
            if text is None and there not in self._others and not self._limiters.owns(call):
                self.unknown.note(call, _prefix(call.keys[0] if call.keys else b""))
            return None
        if isinstance(reply, ReplyError):
            wire["result"] = ERROR
        return wire | self._named(exchange, name, call.keys[0] if call.keys else b"", limiter)

    def _of_window(self, exchange: RedisExchange, limiter: RedisLimiter | None, window_ns: int) -> dict[str, Any]:
        key = exchange.words[1]
        name = limiter.library if limiter else f"redis {exchange.command.decode().lower()}"
        wire: dict[str, Any] = {"window_ns": window_ns} if window_ns else {}
        if limiter is not None:
            call = RedisCall(exchange.command.decode(), "", [key], exchange.words[2:], exchange.reply)
            wire = read(limiter, limiter.matching(call, None) or call, window_ns)
        wire.setdefault("cost", 1.0)
        return wire | self._named(exchange, name, key, limiter)

    def _named(self, exchange: RedisExchange, name: str, key: bytes, limiter: RedisLimiter | None) -> dict[str, Any]:
        ends = exchange.flow.ends
        server = self._called(ends) if ends else "?"
        prefix = limiter.prefix if limiter and limiter.prefix else _prefix(key)
        if stamp := stamped(exchange.command, key):  # the limited object is the same in each window
            key = stamp[1]
            prefix = key.partition(b"_")[0][:24] + b"_"
        short = name.rpartition("/")[2].removeprefix("redis script ")
        values: dict[str, Any] = {
            "limiter_id": fitted(f"{short}@{server} ".encode() + prefix, 48),
            "library": fitted(name.encode(), 48),
        }
        if key:
            values["key"] = self.key(key.removeprefix(limiter.prefix) if limiter else key)
        if limiter is not None and limiter.step_immune is not None:
            values["step_immune"] = limiter.step_immune
        return values


def _prefix(key: bytes) -> bytes:
    match = _PREFIX.match(key)
    return match[0] if match else b""


def _there(exchange: RedisExchange, script: str) -> str:
    """A script at one server: other servers' scripts of this name are independent."""
    ends = exchange.flow.ends
    return f"{ends.server.hex()}:{ends.server_port} {script}" if ends else f"? {script}"


def _who(row: np.void, flow: Flow) -> None:
    proc = flow.client_proc if flow.client_proc is not None else flow.server_proc
    if proc is not None:
        row["role"] = _CLIENT if flow.client_proc is not None else _SERVER
        for name in ("pid", "tid", "proc_start_ns", "cgroup_id"):
            value = int(proc[name])
            row[name] = value if value < 1 << 62 and value != 0xFFFFFFFF else NULL_I64
        row["comm"] = proc["comm"]


def read(limiter: RedisLimiter, call: RedisCall, window_ns: int = 0) -> dict[str, Any]:
    """A declared limiter's reply as columns. window_ns: if known otherwise."""
    found = {name: term(call) for name, term in limiter.terms.items()}
    out: dict[str, Any] = {name: found[name] for name in ("burst", "cost") if found.get(name) is not None}
    if (left := found.get("remaining")) is not None:
        out["remaining"] = max(left, 0.0)  # counters go on above the limit
    out.setdefault("cost", 1.0)
    wait_s = found.get("wait_s") if "wait_s" in found else _thousandth(found.get("wait_ms"))
    window_s = found.get("window_s") if "window_s" in found else _thousandth(found.get("window_ms"))
    allowed = limiter.is_allowed(call) if limiter.is_allowed else None
    if allowed is not None:
        waits = allowed and wait_s is not None and wait_s > 0
        out["result"] = DELAYED if waits else ALLOWED if allowed else REFUSED
        if allowed and not waits and wait_s is not None:
            wait_s = 0.0
    if wait_s is not None and 0 <= wait_s < 1e9:
        out["wait_ns"] = int(wait_s * 1e9)
    if window_s is not None and 0 < window_s < 1e9:
        window_ns = int(window_s * 1e9)
    if window_ns:
        out["window_ns"] = window_ns
        if (limit := found.get("limit")) is not None:
            out["limit_per_s"] = limit / (window_ns / 1e9)
    return out


def _thousandth(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
