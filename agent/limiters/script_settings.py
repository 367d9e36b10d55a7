"""The settings of limiters in Redis: ``redis_limiters``, ``redis_ports``, and ``redis_limiter_scripts``, which declares
a user's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.common.settings import Section
from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    from agent.config import Config
    from agent.limiters.script import RedisLimiter

MODES = ("auto", "on", "off")
MOST, MOST_PORTS = 64, 32
_TOP = Section()
_NAMES = ("script", "function", "command", "key", "allowed", "step_immune")
_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,15}")
_SHA1 = re.compile(r"[0-9a-fA-F]{40}")


def check(config: Config) -> None:
    """Raises AgentError (exit code 2) that names the setting."""
    _TOP.one_of("redis_limiters", config.redis_limiters, MODES)
    _TOP.number("redis_decisions_per_s", config.redis_decisions_per_s, 1, 20_000)
    ports(config.redis_ports)
    if config.redis_limiter_scripts:
        parse(config.redis_limiter_scripts)


def wire(config: Config) -> dict[str, Any]:
    """What the redis family is given; ports also of the brokers that are configured."""
    from agent.common.resp import RedisUrl

    servers = [server for kind in ("redis", "celery") for server in config.brokers.get(kind, ())]
    asked = {RedisUrl.parse(url).port for url in servers if url.startswith(("redis:", "rediss:"))}
    return {
        "mode": config.redis_limiters,
        "given": ports(config.redis_ports) | asked,
        "per_s": int(config.redis_decisions_per_s),
        "own": parse(config.redis_limiter_scripts),
    }


def ports(given: Sequence[str]) -> frozenset[int]:
    """Raises AgentError (exit code 2) for what is no port, and for more than MOST_PORTS."""
    if len(given) > MOST_PORTS:
        raise AgentError(f"redis_ports has {len(given)} entries", why=f"it may have {MOST_PORTS}", exit_code=USAGE)
    return frozenset(_TOP.whole("redis_ports", port, 1, 65535) for port in given)


def parse(given: Mapping[str, object]) -> tuple[RedisLimiter, ...]:
    """By the name under which it is shown. Raises AgentError (exit code 2) that names the setting."""
    if len(given) > MOST:
        raise AgentError(f"redis_limiter_scripts has {len(given)} entries", why=f"it may have {MOST}", exit_code=USAGE)
    return tuple(_one(str(name), value) for name, value in given.items())


def _one(name: str, value: object) -> RedisLimiter:
    from agent.limiters.script import COUNTING, VALUES, RedisLimiter, expression

    section = Section(f"redis_limiter_scripts.{name}")
    if not isinstance(value, Mapping):
        raise Section("redis_limiter_scripts").wrong(name, value, "it is a section of `key: value` lines")
    section.known(value, (*_NAMES, *VALUES))
    kinds = [kind for kind in ("script", "function", "command") if kind in value]
    if len(kinds) != 1:
        raise AgentError(
            f"redis_limiter_scripts.{name} names {'several' if kinds else 'none'} of script, function and command",
            why="it is one of them",
            exit_code=USAGE,
        )
    commands, scripts = _whose(section, kinds[0], value[kinds[0]])
    for term in ("allowed", *VALUES):
        if term in value:
            try:
                expression(str(value[term]), comparing=term == "allowed")
            except ValueError as error:
                raise section.wrong(term, value[term], str(error)) from None
    one_place = "limit" in value and "allowed" not in value and len(str(value["limit"]).split()) == 1
    if kinds[0] == "command" and one_place and set(commands) & set(COUNTING):
        value = {**value, "allowed": f"reply <= {value['limit']}"}
    return RedisLimiter(
        name,
        commands=commands,
        scripts=scripts,
        key=re.escape(section.text("key", value["key"], "how keys begin")) if "key" in value else "",
        allowed=str(value.get("allowed", "")),
        values={term: str(value[term]) for term in VALUES if term in value},
        step_immune=section.flag("step_immune", value["step_immune"]) if "step_immune" in value else None,
    )


def _whose(section: Section, kind: str, value: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(commands, scripts) of a limiter."""
    if kind == "command":
        command = section.text(kind, value, "a command, as INCR or CL.THROTTLE")
        if not _COMMAND.fullmatch(command):
            raise section.wrong(kind, value, "it is one word of up to 16 letters")
        from agent.limiters.script import COUNTING

        return (COUNTING if command.upper() == "INCR" else (command.upper(),)), ()  # some clients send INCRBY 1 for it
    if kind == "function":
        return ("FCALL", "FCALL_RO"), (section.text(kind, value, "the name of a function in Redis")[:64],)
    hashes = section.texts(kind, value, "the SHA1 of a script, or a list of some")
    for one in hashes:
        if not _SHA1.fullmatch(one):
            raise section.wrong(kind, one, "it is the SHA1 of a script: 40 digits, as SCRIPT LOAD gives it")
    return ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"), tuple(one.lower() for one in hashes)
