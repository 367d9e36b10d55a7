"""Probe families: one NAME.py here beside one bpf/NAME.bpf.c, and nothing registered elsewhere.

A module declares ``PROBE`` (agent/kernel/probe.py). Its C source uses bpf/tickscope.h; its wire structs are declared in that source or in
bpf/events.h, and named here. What a family needs besides a declaration stands in ``beside/``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence

from agent.kernel.probe import Probe
from agent.tables import TABLES


def discover(functions: Sequence[Mapping[str, object]] = ()) -> dict[str, Probe]:
    """Every family declared in this package, by name. functions: the setting ``limiter_functions``, of which programs are made too. Raises ValueError for a table that cannot be added."""
    if functions:
        from agent.limiters.functions.settings import declare_all

        declare_all(functions)
    found = {}
    for module in pkgutil.iter_modules(__path__):
        probe = None if module.ispkg else getattr(importlib.import_module(f"{__name__}.{module.name}"), "PROBE", None)
        if isinstance(probe, Probe):
            found[probe.name] = probe
            for table in probe.tables:
                TABLES.add(table)
    return found
