"""Commands that the ACL of a Redis server refuses (NOPERM): which rule is missing; and those that it does not know, as
they were renamed or are of a newer version. Neither is repeated at each poll, since the server logs each refusal (ACL
LOG).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import hiredis

from agent.common.resp import Reply, RespClient
from agent.queues.redis_info import errors

Command = tuple[bytes | str | int, ...]

RETRY_NS = 10_000_000_000
_MISSED_NS = 60_000_000_000  # a rule that nothing has needed for so long is no longer missing
MAX_REFUSED = 1024  # rules that are remembered
#: Commands that are refused by subcommand, and the place of the key in those that have one.
_CONTAINERS = frozenset(("XINFO", "CLIENT", "MEMORY"))
_KEY_AT = {
    "XINFO": 2,
    **dict.fromkeys(("XRANGE", "XPENDING", "LLEN", "LINDEX", "ZCARD", "ZCOUNT", "ZRANGE"), 1),
    "PEXPIRETIME": 1,
    **dict.fromkeys(("SMEMBERS", "SCARD", "HGET", "HMGET", "HVALS", "HLEN", "HSTRLEN", "GET", "PTTL", "SSCAN"), 1),
    **dict.fromkeys(("LRANGE", "DEL", "RPUSH", "EXPIRE"), 1),
    "MEMORY": 2,
}


class Rights:
    """The commands of one user on one server. errors: kinds and counts of error replies to commands that were sent;
    the user resets it.
    """

    def __init__(self) -> None:
        self.errors = Counter[str]()
        self._refused: dict[str, tuple[int, hiredis.ReplyError]] = {}  # rule -> (time of the refusal, the reply)

    def pipeline(self, client: RespClient, commands: Sequence[Command], now_ns: int) -> list[Reply]:
        """As ``RespClient.pipeline``, without the commands that were refused within the last RETRY_NS: their reply is
        the earlier refusal. now_ns: CLOCK_BOOTTIME. Raises RedisDown.
        """
        held = [self._held(command, now_ns) for command in commands]
        sent = [command for command, refusal in zip(commands, held, strict=True) if refusal is None]
        given = client.pipeline(sent) if sent else []
        self.errors += errors(given)
        replies = iter(given)
        out = [next(replies) if refusal is None else refusal for refusal in held]
        for command, refusal, reply in zip(commands, held, out, strict=True):
            if refusal is None:
                self._note(command, reply, now_ns)
        return out

    def missing(self, now_ns: int) -> list[str]:
        """The missing rules, as ``ACL SETUSER`` takes them; commands before keys."""
        return sorted(rule for rule, reply in self._lately(now_ns) if not _is_unknown(reply))

    def unknown(self, now_ns: int) -> list[str]:
        """The commands that the server does not know."""
        names = (rule[1:].partition("|")[0].upper() for rule, reply in self._lately(now_ns) if _is_unknown(reply))
        return sorted(set(names))

    def _lately(self, now_ns: int) -> list[tuple[str, hiredis.ReplyError]]:
        self._refused = {rule: one for rule, one in self._refused.items() if now_ns - one[0] < _MISSED_NS}
        return [(rule, reply) for rule, (_, reply) in self._refused.items()]

    def _held(self, command: Command, now_ns: int) -> hiredis.ReplyError | None:
        if not self._refused:
            return None
        for rule in rules(command):
            at_ns, reply = self._refused.get(rule, (0, None))
            if reply is not None and now_ns - at_ns < RETRY_NS:
                return reply
        return None

    def _note(self, command: Command, reply: Reply, now_ns: int) -> None:
        rule = rules(command)[0] if _is_unknown(reply) else missing_rule(command, reply)
        if rule:
            if rule in self._refused or len(self._refused) < MAX_REFUSED:
                self._refused[rule] = now_ns, reply
        elif self._refused:
            for held in rules(command):
                self._refused.pop(held, None)


def missing_rule(command: Command, reply: Reply) -> str:
    """The ACL rule whose absence this reply reports; empty if it is another reply."""
    if not isinstance(reply, hiredis.ReplyError) or not str(reply).startswith("NOPERM"):
        return ""
    its = rules(command)
    return its[-1] if len(its) > 1 and any(word in str(reply) for word in (" key", " channel")) else its[0]


def _is_unknown(reply: Reply) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("ERR unknown command")


def rules(command: Command) -> list[str]:
    """The rules that a command needs: for itself, and for its key if it has one."""
    name = _text(command[0])
    its = [f"+{name.lower()}|{_text(command[1]).lower()}" if name in _CONTAINERS else f"+{name.lower()}"]
    if name == "PUBLISH":
        return [*its, f"&{_text(command[1])}"]
    at = _KEY_AT.get(name)
    return its if at is None else [*its, f"~{_text(command[at])}"]


def _text(part: bytes | str | int) -> str:
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)
