"""The ``notices`` setting: a command that gets every jump notice. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from agent.common.settings import Section

_SECTION = Section("notices")


@dataclass(frozen=True)
class HookConfig:
    """Off by default.

    exec: a command that gets the notice as JSON on its standard input; run without a shell, as the agent's user.
    timeout_s: how long it may run for one notice.
    """

    exec: tuple[str, ...] = ()
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


def parse(settings: Mapping[str, object]) -> HookConfig:
    """The setting, checked. Raises AgentError (exit code 2) that names the key."""
    _SECTION.known(settings, HookConfig.__dataclass_fields__)
    timeout_s = _SECTION.number("timeout_s", settings.get("timeout_s", HookConfig.timeout_s), 0.1, 60)
    return HookConfig(_command(settings.get("exec") or ()), timeout_s)
