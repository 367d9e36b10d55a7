"""Probe families: one NAME.py here beside one bpf/NAME.bpf.c, and nothing registered elsewhere.

A module declares ``PROBE`` (agent/kernel/probe.py). Its C source uses bpf/tickscope.h; its wire structs are declared in
that source or in bpf/events.h, and named here. A table of its own is declared in it too (agent/tables/brought.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.common.declared import all_declared
from agent.instruments.kind import extended
from agent.kernel.probe import Probe

if TYPE_CHECKING:
    from agent.limiters.functions.settings import FunctionSettings


def discover(functions: Sequence[FunctionSettings] = ()) -> dict[str, Probe]:
    """Every family declared in this package, by name. functions: the setting ``limiter_functions``, of which programs
    are made too. Raises AgentError for a wrong declaration.
    """
    if functions:
        from agent.limiters.functions.settings import declare_all

        declare_all(functions)
    return extended({probe.name: probe for probe in all_declared(sys.modules[__name__], "PROBE", Probe, named=True)})
