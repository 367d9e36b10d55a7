"""What the replies of a script may mean that nobody declared: by its text, its keys, and what it answers. Pure; the text and the replies are anybody's."""

from __future__ import annotations

import re
from typing import Any

from agent.limiters.reading import ALLOWED, REFUSED
from agent.limiters.script import RedisCall
from agent.probes.beside.resp_stream import ReplyError

_LIKE_A_LIMITER = re.compile(
    rb"(?is)(?=.*(?:incr|decr|zadd|push|set))(?=.*(?:expire|\bpx\b|\bex\b|zremrange|setex))(?=.*(?:limit|rate|burst|token|capacity|window|quota|throttl))"
)
_KEY_LIKE_A_LIMITER = re.compile(rb"(?i)(?:rate|limit|throttl|quota|bucket)")
#: What a script answers that is no yes or no: how many there were, or how long to wait; at once, or by a variable.
_COUNTED = rb"redis\.p?call\s*\(\s*['\"](?:incr|decr|hincr|zcard|zcount|llen|p?ttl)"
_AND_NO_MORE = rb"\s*(?:[,};]|end\b|else|--|\Z)"
_COUNTS = re.compile(rb"(?is)return\s*(?:\{\s*)?(?:current|count|" + _COUNTED + rb"[^()]{0,200}\))" + _AND_NO_MORE)
_COUNTERS = re.compile(rb"(?is)\b(\w{1,40})\s*=\s*(?:tonumber\s*\(\s*)?" + _COUNTED)
FUNCTIONS = re.compile(rb"register_function\s*(?:[({]\s*)?(?:\{\s*)?(?:function_name\s*=\s*)?['\"](\w{1,64})['\"]")
_WHOLE = re.compile(rb"-?\d{1,7}\Z")


def looks_like_a_limiter(call: RedisCall, text: bytes | None) -> bool:
    if text is not None and ((like := bool(_LIKE_A_LIMITER.match(text))) or not call.command.startswith("FCALL")):
        return like
    return any(_KEY_LIKE_A_LIMITER.search(key[:256]) for key in call.keys) or bool(
        _KEY_LIKE_A_LIMITER.search(call.script.encode()) if call.command.startswith("FCALL") else False
    )


def plausible(reply: Any) -> bool:
    """Whether a limiter would answer so: a number, yes or no, or a list that begins with one."""
    first = reply[0] if isinstance(reply, list) and 0 < len(reply) <= 8 else reply
    return (
        first is None
        or isinstance(first, (bool, int, float, ReplyError))
        or (isinstance(first, bytes) and len(first) < 24 and first.lstrip(b"-").replace(b".", b"").isdigit())
    )


def counts(reply: Any) -> bool:
    """Whether it is no yes or no, but says how many there were, or how long to wait."""
    first = reply[0] if isinstance(reply, list) and reply else reply
    first = int(first) if isinstance(first, bytes) and _WHOLE.match(first) else first
    return isinstance(first, (int, float)) and first not in (-1, 0, 1)


def says_how_many(text: bytes) -> bool:
    """The same of a script, by what it returns."""
    names = b"|".join({re.escape(name) for name in _COUNTERS.findall(text)[:32]})
    returns = rb"(?i)return\s*(?:\{\s*)?(?:" + names + rb")" + _AND_NO_MORE
    return bool(_COUNTS.search(text) or (names and re.search(returns, text)))


def guessed(call: RedisCall) -> dict[str, Any]:
    """The usual meaning of a script's reply: 0, nothing or false is refused, 1 and true allowed; of a list the first element, and the second is what remains."""
    reply, out = call.reply, dict[str, Any](cost=1.0)
    first = reply[0] if isinstance(reply, list) and reply else reply
    if isinstance(reply, list) and len(reply) > 1 and type(reply[1]) is int and reply[1] >= 0:
        out["remaining"] = float(reply[1])
    if isinstance(first, bytes) and _WHOLE.match(first):
        first = int(first)
    if first is None or first is False or (type(first) is int and first in (0, -1)):
        out["result"] = REFUSED
    elif first is True or (type(first) is int and first == 1):
        out["result"] = ALLOWED
    return out
