"""The ``notices`` setting: what else is told of a jump, beside the notice socket. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from agent.common.settings import Section
from agent.errors import USAGE, AgentError

_SECTION = Section("notices")


@dataclass(frozen=True)
class HookConfig:
    """All off by default.

    exec: a command that gets the notice as JSON on its standard input; run without a shell, as the agent's user.
    webhook: an http or https URL to which the notice is posted. redis: the URL of a server, where it is published on
    ``redis_channel``.
    timeout_s: what each of them may take.
    """

    exec: tuple[str, ...] = ()
    webhook: str = ""
    redis: str = ""
    redis_channel: str = "tickscope:clock"
    timeout_s: float = 2.0


def _command(value: object) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _SECTION.wrong("exec", value, str(error)) from None
    if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
        raise _SECTION.wrong("exec", value, "it is a command, as one text or as a list of texts")
    if words and not words[0].startswith("/"):
        raise _SECTION.wrong(
            "exec", value, "it begins with the program's whole path, for example /usr/local/bin/on-jump"
        )
    return tuple(words)


def _webhook(value: object) -> str:
    url = _SECTION.text("webhook", value, "a URL")
    try:
        parts = urlsplit(url)
        good = not url or (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and url.isascii()
            and url.isprintable()
        )
    except ValueError:
        good = False
    if not good:
        raise _SECTION.wrong("webhook", value, "it is an http or https URL, for example http://127.0.0.1:8080/clock")
    return url


def _redis(value: object) -> str:
    text = _SECTION.text("redis", value, "a URL, for example redis://127.0.0.1:6379")
    if text:
        from agent.common.resp import RedisUrl

        try:
            url = RedisUrl.parse(text)
        except AgentError as error:
            raise AgentError(
                "notices.redis cannot be read", why=error.why, remedy="write it as redis://host:6379", exit_code=USAGE
            ) from None
        if url.streams:
            raise AgentError(
                "notices.redis takes no streams", remedy="name the channel with notices.redis_channel", exit_code=USAGE
            )
    return text


def parse(settings: Mapping[str, object]) -> HookConfig:
    """The setting, checked. Raises AgentError (exit code 2) that names the key; a password is not shown."""
    _SECTION.known(settings, HookConfig.__dataclass_fields__)
    channel = _SECTION.text(
        "redis_channel", settings.get("redis_channel", HookConfig.redis_channel), "the name of a channel"
    )
    if not channel:
        raise _SECTION.wrong("redis_channel", channel, "it is the name of a channel")
    timeout_s = _SECTION.number("timeout_s", settings.get("timeout_s", HookConfig.timeout_s), 0.1, 60)
    return HookConfig(
        _command(settings.get("exec") or ()),
        _webhook(settings.get("webhook") or ""),
        _redis(settings.get("redis") or ""),
        channel,
        timeout_s,
    )
