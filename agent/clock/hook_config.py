"""The ``notices`` setting: what else is told of a jump, beside the notice socket. Standard library only."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from agent.errors import USAGE, AgentError


@dataclass(frozen=True)
class HookConfig:
    """All off by default.

    exec: a command that gets the notice as JSON on its standard input; run without a shell, as the agent's user.
    webhook: an http or https URL to which the notice is posted. redis: the URL of a server, where it is published on ``redis_channel``.
    timeout_s: what each of them may take.
    """

    exec: tuple[str, ...] = ()
    webhook: str = ""
    redis: str = ""
    redis_channel: str = "tickscope:clock"
    timeout_s: float = 2.0


def _wrong(key: str, value: object, why: str) -> AgentError:
    return AgentError(f"notices.{key} cannot be {value!r}", why=why, exit_code=USAGE)


def _command(value: object) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _wrong("exec", value, str(error)) from None
    if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
        raise _wrong("exec", value, "it is a command, as one text or as a list of texts")
    if words and not words[0].startswith("/"):
        raise _wrong("exec", value, "it begins with the program's whole path, for example /usr/local/bin/on-jump")
    return tuple(words)


def _webhook(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong("webhook", value, "it is a URL")
    try:
        parts = urlsplit(value)
        good = not value or (parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and value.isascii() and value.isprintable())
    except ValueError:
        good = False
    if not good:
        raise _wrong("webhook", value, "it is an http or https URL, for example http://127.0.0.1:8080/clock")
    return value


def _redis(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong("redis", value, "it is a URL, for example redis://127.0.0.1:6379")
    if value:
        from agent.queues.resp import RedisUrl

        try:
            url = RedisUrl.parse(value)
        except AgentError as error:
            raise AgentError("notices.redis cannot be read", why=error.why, remedy="write it as redis://host:6379", exit_code=USAGE) from None
        if url.streams:
            raise AgentError("notices.redis takes no streams", remedy="name the channel with notices.redis_channel", exit_code=USAGE)
    return value


def parse(settings: Mapping[str, object]) -> HookConfig:
    """The setting, checked. Raises AgentError (exit code 2) that names the key; a password is not shown."""
    known = tuple(HookConfig.__dataclass_fields__)
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            raise AgentError(f"there is no setting notices.{key}", why=f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}",
                             exit_code=USAGE)
    channel, timeout = settings.get("redis_channel", HookConfig.redis_channel), settings.get("timeout_s", HookConfig.timeout_s)
    if not isinstance(channel, str) or not channel:
        raise _wrong("redis_channel", channel, "it is the name of a channel")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0.1 <= timeout <= 60:
        raise _wrong("timeout_s", timeout, "it lies between 0.1 and 60")
    return HookConfig(_command(settings.get("exec") or ()), _webhook(settings.get("webhook") or ""), _redis(settings.get("redis") or ""),
                      channel, float(timeout))
