"""The setting ``limiter_models``: the algorithms of limiters without a known library, mostly hand-written ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.common.settings import flag, number, one_of, parse_seconds, seconds, setting, value, whole

_WINDOW_S = 1e-6, 366 * 86400.0


def _models() -> Mapping[str, object]:
    from agent.limiters.models.catalogue import MODELS

    return MODELS


def _clocks() -> tuple[str, ...]:
    from agent.limiters.library import CLOCKS

    return CLOCKS


@dataclass(frozen=True)
class Declared:
    """The declared algorithm of limiters whose id matches ``pattern`` (``*`` and ``?``), from the settings or a command
    line. 0, empty and None: not declared.
    """

    pattern: str = "*"
    model: str = setting("", one_of(late=_models))
    clock: str = setting("", one_of(late=_clocks))
    per_s: float = setting(0.0, number(1e-9, 1e12))
    burst: float = setting(0.0, number(1, 1e12))
    count: float = setting(0.0, number(1, 1e12), key="limit")
    window_ns: int = setting(
        0,
        value(lambda given: round(parse_seconds(given, *_WINDOW_S) * 1e9), "a time", schema=seconds(*_WINDOW_S).schema),
        key="window",
    )
    slots: int = setting(0, whole(1, 10_000))
    shared: bool | None = setting(None, flag())
