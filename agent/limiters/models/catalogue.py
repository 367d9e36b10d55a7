"""The models: the files beside this one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from agent.limiters import models
from agent.limiters.models.model import Model

_NOT_MODELS = ("catalogue", "model")


def _found() -> dict[str, Model]:
    found: list[Model] = []
    for info in iter_modules(models.__path__):
        if info.name not in _NOT_MODELS:
            found += import_module(f"{models.__name__}.{info.name}").MODELS
    return {one.name: one for one in sorted(found, key=lambda one: one.name.lower())}


MODELS = _found()
