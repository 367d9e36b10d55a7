"""The ``limiter_models`` setting: how limiters decide of which no library says it, hand-written ones mostly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.common.settings import Section
from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    from agent.limiters.replay.ruled import Declared

KEYS = ("model", "clock", "window", "limit", "per_s", "burst", "slots", "shared")
MOST = 256


def parse(given: Mapping[str, object]) -> tuple[Declared, ...]:
    """By a limiter's id, which may have ``*`` and ``?``. Raises AgentError (exit code 2) that names the setting."""
    if len(given) > MOST:
        raise AgentError(f"limiter_models has {len(given)} entries", why=f"it may have {MOST}", exit_code=USAGE)
    found = []
    for pattern, value in given.items():
        section = Section(f"limiter_models.{pattern}")
        if not isinstance(value, Mapping):
            raise Section("limiter_models").wrong(str(pattern), value, "it is a section of `key: value` lines")
        section.known(value, KEYS)
        found.append(one(str(pattern), value, section))
    return tuple(found)


def one(pattern: str, value: Mapping[str, object], section: Section) -> Declared:
    """What is said of the limiters of a pattern. Raises AgentError (exit code 2) that names the setting."""
    from agent.limiters.library import CLOCKS
    from agent.limiters.models.catalogue import MODELS
    from agent.limiters.replay.ruled import Declared

    return Declared(
        pattern,
        section.one_of("model", value["model"], MODELS) if "model" in value else "",
        section.one_of("clock", value["clock"], CLOCKS) if "clock" in value else "",
        section.number("per_s", value["per_s"], 1e-9, 1e12) if "per_s" in value else 0.0,
        section.number("burst", value["burst"], 1, 1e12) if "burst" in value else 0.0,
        section.number("limit", value["limit"], 1, 1e12) if "limit" in value else 0.0,
        round(section.seconds("window", value["window"], 1e-6, 366 * 86400) * 1e9) if "window" in value else 0,
        section.whole("slots", value["slots"], 1, 10_000) if "slots" in value else 0,
        section.flag("shared", value["shared"]) if "shared" in value else None,
    )
