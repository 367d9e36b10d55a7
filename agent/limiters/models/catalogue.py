"""The models: the files beside this one."""

from __future__ import annotations

from agent.common.declared import all_declared
from agent.limiters import models
from agent.limiters.models.model import Model


def _found() -> dict[str, Model]:
    found = all_declared(models, "MODELS", Model, optional=True)
    return {one.name: one for one in sorted(found, key=lambda one: one.name.lower())}


MODELS = _found()
