"""Guesses the meaning of an undeclared script's replies, by its text, its keys and its replies. Pure; the input is
untrusted.
"""

from __future__ import annotations

import re
from typing import Any

from agent.limiters.reading import ALLOWED, REFUSED
from agent.limiters.script import RedisCall
from agent.redis_wire.resp_stream import ReplyError

_LIKE_A_LIMITER = re.compile(
    rb"(?is)(?=.*(?:incr|decr|zadd|push|set))(?=.*(?:['\"]p?expire(?:at)?['\"]|\bpx\b|\bex\b|zremrange|setex))(?=.*(?:limit|rate|burst|token|capacity|window|quota|throttl))"
)
#: Identifies a limiter whatever its words are: a counter that expires, or a set of times whose old ones are removed.
_A_WINDOW = re.compile(
    rb"(?is)(?=.*['\"]incr(?:by)?['\"]).*['\"]p?expire['\"]|(?=.*['\"]zremrangebyscore['\"]).*['\"]z(?:card|count)['\"]"
)
_KEY_LIKE_A_LIMITER = re.compile(rb"(?i)(?:rate|limit|throttl|quota|bucket)")
#: Replies that are a count or a wait, not yes or no; directly, or by a variable.
_COUNTED = rb"redis\.p?call\s*\(\s*['\"](?:incr|decr|hincr|zcard|zcount|llen|p?ttl)"
_AND_NO_MORE = rb"\s*(?:[,};]|end\b|else|--|\Z)"
_COUNTS = re.compile(rb"(?is)return\s*(?:\{\s*)?(?:current|count|" + _COUNTED + rb"[^()]{0,200}\))" + _AND_NO_MORE)
_COUNTERS = re.compile(rb"(?is)\b(\w{1,40})\s*=\s*(?:tonumber\s*\(\s*)?" + _COUNTED)
FUNCTIONS = re.compile(rb"register_function\s*(?:[({]\s*)?(?:\{\s*)?(?:function_name\s*=\s*)?['\"](\w{1,64})['\"]")
_WHOLE = re.compile(rb"-?\d{1,7}\Z")
_COMMENT = re.compile(
    rb"--\[\[(?:[^\]]|\](?!\]))*(?:\]\])?|--[^\n]*"
)  # an open one extends to the end: a new search at each "--[[" would take seconds
#: Runs of blanks: patterns with several \s* would try every split of them.
_BLANKS, _LINES = re.compile(rb"[^\S\n]+"), re.compile(rb"\n\s*")
#: Names of the first returned value that mean a refusal; of the second, if it is not the rest.
_TURNED_AWAY = re.compile(
    rb"(?i)return\s*\{?\s*(?:is_?)?(?:limited|blocked|denied|rejected|refused|exceeded|throttled|over_?limit|rate_?limited)\b"
)
_NO_REST = re.compile(
    rb"(?i)return\s*\{[^,{}]{1,80},\s*(?:tonumber\(\s*)?(?:current|count|used|hits|total|n|ttl|p?ttl|retry\w*|reset\w*|wait\w*|now|score|redis)\b"
)
#: COUNT > LIMIT, and the reply above it: if ... then ... return 1, or return ... and 1 or 0. In reverse for tokens and
#: for LIMIT < COUNT.
_COMPARED = re.compile(
    rb"\b(?:if|return)\s*[({]?\s*(?:tonumber\s*\(\s*)?(\w{1,40})([^\n<>=]{0,60})(>=?|<=?)\s*([^\n<>=]{1,60}?)[\s)](then|and\s+(?:-?\d|true|false|nil))\b"
)
_ANSWER = re.compile(rb"\breturn\s*\{?\s*(-?\d+|true|false|nil)\b|\b(?:end|else|elseif|if|return)\b")
_LIMIT = re.compile(rb"(?i)limit|max|capacity|quota|threshold|burst|argv")
_REST = re.compile(rb"(?i)token|left|remain|avail|balance|permit|fill|credit")


def is_limiter_like(call: RedisCall, text: bytes | None) -> bool:
    if text is not None:
        if _LIKE_A_LIMITER.match(text) or _A_WINDOW.match(text):
            return True
        if not call.command.startswith("FCALL"):
            return False
    return any(_KEY_LIKE_A_LIMITER.search(key[:256]) for key in call.keys) or bool(
        _KEY_LIKE_A_LIMITER.search(call.script.encode()) if call.command.startswith("FCALL") else False
    )


def plausible(reply: Any) -> bool:
    """Whether a limiter may reply so: a number, yes or no, or a list that begins with one."""
    first = reply[0] if isinstance(reply, list) and 0 < len(reply) <= 8 else reply
    return (
        first is None
        or isinstance(first, (bool, int, float, ReplyError))
        or (isinstance(first, bytes) and len(first) < 24 and first.lstrip(b"-").replace(b".", b"").isdigit())
    )


def counts(reply: Any) -> bool:
    """Whether it is a count or a wait, not yes or no."""
    first = reply[0] if isinstance(reply, list) and reply else reply
    first = int(first) if isinstance(first, bytes) and _WHOLE.match(first) else first
    return isinstance(first, (int, float)) and first not in (-1, 0, 1)


def returns_count(text: bytes) -> bool:
    """The same for a script, by what it returns."""
    names = b"|".join({re.escape(name) for name in _COUNTERS.findall(text)[:32]})
    returns = rb"(?i)return\s*(?:\{\s*)?(?:" + names + rb")" + _AND_NO_MORE
    return bool(_COUNTS.search(text) or (names and re.search(returns, text)))


def _bare(text: bytes) -> bytes:
    return _LINES.sub(b"\n", _BLANKS.sub(b" ", _COMMENT.sub(b" ", text)))


def inverted(text: bytes) -> bool:
    """Whether 1 and true mean a refusal, by its names or its comparisons."""
    text = _bare(text)
    if _TURNED_AWAY.search(text):
        return True
    for found in _COMPARED.finditer(text):
        left, then = found[1], found[5]
        rest, limit = bool(_REST.search(left)), bool(_LIMIT.search(left))
        if found[4].strip(b" \t)") == b"0" and not rest:  # whether there is any
            continue
        if then == b"then":
            after = _ANSWER.search(text, found.end(), found.end() + 400)
            answer = after[1] if after else None
        else:
            answer = then.split()[-1]
        if answer is not None:
            beyond = (found[3][:1] == b">") != (rest or limit)
            return beyond == (answer in (b"1", b"true"))
    return False


def is_single_value(text: bytes) -> bool:
    """Whether the second returned element is not the remainder."""
    return bool(_NO_REST.search(_bare(text)))


def guessed(call: RedisCall, turned: bool = False, rest: bool = True) -> dict[str, Any]:
    """The usual meaning of a script's reply: 0, nothing or false is refused, 1 and true allowed. Of a list, this is the
    first element; the second is the remainder. turned: reversed. rest: whether the second is the remainder.
    """
    reply, out = call.reply, dict[str, Any](cost=1.0)
    first = reply[0] if isinstance(reply, list) and reply else reply
    if rest and isinstance(reply, list) and len(reply) > 1 and type(reply[1]) is int and reply[1] >= 0:
        out["remaining"] = float(reply[1])
    if isinstance(first, bytes) and _WHOLE.match(first):
        first = int(first)
    if first is None or first is False or (type(first) is int and first in (0, -1)):
        out["result"] = ALLOWED if turned else REFUSED
    elif first is True or (type(first) is int and first == 1):
        out["result"] = REFUSED if turned else ALLOWED
    return out
