"""The settings of limiters in Redis, and declarations of a user's own scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.common.settings import by_name, flag, one_of, one_or_list, parse_texts, part, setting, text, value, whole

if TYPE_CHECKING:
    from agent.limiters.script import RedisLimiter

MOST, MOST_PORTS = 64, 32
_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,15}")
_SHA1 = re.compile(r"[0-9a-fA-F]{40}")


def _hashes(given: object) -> tuple[str, ...]:
    found = parse_texts(given, "the SHA1 of a script, or a list of some")
    if not all(map(_SHA1.fullmatch, found)):
        raise ValueError("must be the SHA1 of a script: 40 hexadecimal digits, as SCRIPT LOAD returns it")
    return tuple(one.lower() for one in found)


def _command(given: str) -> str:
    if not _COMMAND.fullmatch(given):
        raise ValueError("must be one word of up to 16 letters")
    return given.upper()


def _term(given: object, comparing: bool = False) -> str:
    from agent.limiters.script import expression

    expression(str(given), comparing=comparing)
    return str(given)


def _term_schema() -> dict[str, Any]:
    return {"type": ["string", "number"]}


_TERM = value(_term, "a value: reply.0, arg.0, 10 - reply", schema=_term_schema)


@dataclass(frozen=True)
class ScriptSettings:
    """A limiter of the user's own, identified by script, function or command."""

    script: tuple[str, ...] = setting(
        (),
        value(
            _hashes,
            "SHA1s of scripts",
            schema=lambda: one_or_list({"type": "string", "pattern": f"^{_SHA1.pattern}$"}, 256),
        ),
    )
    function: str = setting("", text("the name of a function in Redis", lambda name: name[:64]))
    command: str = setting("", text("a command, as INCR or CL.THROTTLE", _command))
    key: str = setting("", text("how keys begin"))
    allowed: str = setting(
        "", value(lambda given: _term(given, comparing=True), "a comparison: reply.0 == 1", schema=_term_schema)
    )
    remaining: str = setting("", _TERM)
    limit: str = setting("", _TERM)
    burst: str = setting("", _TERM)
    cost: str = setting("", _TERM)
    window_s: str = setting("", _TERM)
    window_ms: str = setting("", _TERM)
    wait_s: str = setting("", _TERM)
    wait_ms: str = setting("", _TERM)
    step_immune: bool | None = setting(None, flag())

    def check(self) -> None:
        kinds = sum(map(bool, (self.script, self.function, self.command)))
        if kinds != 1:
            raise ValueError(
                f"must have exactly one of script, function and command, and has {'several' if kinds else 'none'}"
            )

    def limiter(self, name: str) -> RedisLimiter:
        """name: its displayed name."""
        from agent.limiters.script import COUNTING, VALUES, RedisLimiter

        allowed = self.allowed
        commands: tuple[str, ...] = ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO")
        if self.function:
            commands = ("FCALL", "FCALL_RO")
        elif self.command:
            commands = COUNTING if self.command == "INCR" else (self.command,)  # some clients send INCRBY 1 for it
            if set(commands) & set(COUNTING) and len(self.limit.split()) == 1 and not allowed:
                allowed = f"reply <= {self.limit}"
        return RedisLimiter(
            name,
            commands=commands,
            scripts=(self.function,) if self.function else self.script,
            key=re.escape(self.key),
            allowed=allowed,
            values={term: given for term in VALUES if (given := getattr(self, term))},
            step_immune=self.step_immune,
        )


def _ports(given: object) -> tuple[int, ...]:
    items = given if isinstance(given, (list, tuple)) else [given]
    if len(items) > MOST_PORTS:
        raise ValueError(f"at most {MOST_PORTS} ports are allowed")
    try:
        ports = tuple(-1 if isinstance(item, bool) else int(str(item)) for item in items)
    except ValueError:
        ports = (-1,)
    if not all(0 < port < 65536 for port in ports):
        raise ValueError("must be a list of ports: whole numbers between 1 and 65535")
    return ports


@dataclass(frozen=True)
class RedisLimiterSettings:
    mode: str = setting(
        "auto",
        one_of("auto", "on", "off"),
        "read limiters in Redis (scripts, functions, INCR with EXPIRE ...) from the wire; auto: while one is in use",
        key="redis_limiters",
    )
    ports: tuple[int, ...] = setting(
        (),
        value(
            _ports,
            f"at most {MOST_PORTS} ports",
            schema=lambda: one_or_list({"type": "integer", "minimum": 1, "maximum": 65535}, MOST_PORTS),
        ),
        "further ports of Redis servers, beside 6379, those of the brokers above, and those of processes with names"
        " such as redis-server",
        key="redis_ports",
    )
    decisions_per_s: int = setting(
        1000,
        whole(1, 20_000),
        "decisions of limiters in Redis with a row each, per second and user; the rest is counted (sample_rate)",
        key="redis_decisions_per_s",
    )
    scripts: Mapping[str, ScriptSettings] = setting(
        {},
        by_name(part(ScriptSettings), MOST, f"at most {MOST} limiters by name"),
        "your own scripts: {checkout: {script: SHA1, allowed: reply.0 == 1, remaining: reply.1, limit: arg.0,"
        " window_s: arg.1}}; see docs/limiters-redis.md",
        key="redis_limiter_scripts",
    )

    def own(self) -> tuple[RedisLimiter, ...]:
        return tuple(one.limiter(name) for name, one in self.scripts.items())


def broker_ports(brokers: Mapping[str, Sequence[Any]]) -> frozenset[int]:
    """Ports of the brokers that are Redis servers."""
    from agent.common.resp import RedisUrl

    servers = [server for kind in ("redis", "celery") for server in brokers.get(kind, ())]
    urls = [str(one.get("url") if isinstance(one, Mapping) else one).partition("?")[0] for one in servers]
    return frozenset(RedisUrl.parse(url).port for url in urls if url.startswith(("redis:", "rediss:")))
