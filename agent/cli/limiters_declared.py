"""Limiter algorithms declared by the command line and the settings, for ``limiters replay``."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    from agent.limiters.model_settings import Declared


def declared_by_flags(
    config: str | None, model: str | None, count: float | None, slots: int | None, window: int | None
) -> tuple[Declared, ...]:
    """The command line's declarations, then those of the settings."""
    import difflib
    from pathlib import Path

    from agent.config import DEFAULT_FILE, read_file
    from agent.limiters.functions.settings import functions, replayed
    from agent.limiters.model_settings import Declared
    from agent.limiters.models.catalogue import MODELS
    from agent.limiters.settings import LimiterSettings

    if model is not None and model not in MODELS:
        near = difflib.get_close_matches(model, MODELS, 1, 0.4)
        raise AgentError(
            f"no model {model!r}",
            why=f"there are: {'; '.join(MODELS)}",
            remedy=f"--model {near[0]!r}" if near else "",
            exit_code=USAGE,
        )
    limiters = LimiterSettings()
    if config or os.access(DEFAULT_FILE, os.R_OK):  # not everybody who may read the store may read the settings
        limiters = read_file(Path(config) if config else DEFAULT_FILE, required=bool(config)).limiters
    models = [replace(one, pattern=pattern) for pattern, one in limiters.limiter_models.items()]
    own = replayed(functions(limiters.limiter_functions))
    return (Declared("*", model or "", count=count or 0.0, slots=slots or 0, window_ns=window or 0), *models, *own)
