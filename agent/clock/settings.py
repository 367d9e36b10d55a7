"""Settings of the clock: the alarm threshold for steps, and the hook command for jump notices."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace

from agent.common.duration import parse_ns
from agent.common.settings import naming_file, number, one_or_list, part, setting, text, value
from agent.errors import USAGE, AgentError


def jump_threshold_ns(given: str) -> int | None:
    """Parses a threshold: ``128ms`` in ns, ``all`` as None. Raises AgentError (exit code 2)."""
    try:
        return None if given == "all" else parse_ns(given)
    except ValueError:
        why = "must be all, or a time such as 500us, 128ms or 1s"
        raise AgentError(f"jump_threshold cannot be {given!r}", why=why, exit_code=USAGE) from None


def _threshold(given: str) -> str:
    jump_threshold_ns(given)
    return given


def _command(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        import shlex

        given = shlex.split(given)
    words = given
    if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
        raise ValueError("must be a command, as one text or as a list of texts")
    if words and not words[0].startswith("/"):
        raise ValueError("must begin with the absolute path of the program, such as /usr/local/bin/on-jump")
    return tuple(words)


def _executable(command: tuple[str, ...]) -> None:
    """Raises OSError if this user cannot execute the program."""
    os.stat(command[0])
    if not os.access(command[0], os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "Permission denied")


@dataclass(frozen=True)
class HookSettings:
    """Settings of the hook. Off by default."""

    exec: tuple[str, ...] = setting(
        (),
        naming_file(
            value(_command, "a command with an absolute path", schema=lambda: one_or_list({"type": "string"})),
            _executable,
        ),
        "command that gets each notice of a clock jump as JSON on its standard input, such as /usr/local/bin/on-jump;"
        " runs without a shell, as user tickscope",
    )
    timeout_s: float = setting(2.0, number(0.1, 60), "seconds that the command may run for one notice")


@dataclass(frozen=True)
class ClockSettings:
    jump_threshold: str = setting(
        "all",
        replace(text("all, or a time such as 128ms", _threshold), metavar="SIZE"),
        "smaller clock steps are findings only if a limiter is affected, larger ones are alarms: 500us, 128ms, 1s."
        " all: each step is a finding, and an alarm from 128ms on",
        variable="TICKSCOPE_JUMP_THRESHOLD",
        flag=True,
    )
    notices: HookSettings = setting(
        HookSettings(), part(HookSettings), "a command that gets notices of clock jumps; see docs/clock-notices.md"
    )

    @property
    def jump_threshold_ns(self) -> int | None:
        """The threshold in ns; None for ``all``."""
        return jump_threshold_ns(self.jump_threshold)
