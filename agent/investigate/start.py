"""Starts the investigator; opens what needs root before root is given up."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.investigate.investigator import Investigator
from agent.investigate.naming import Naming

if TYPE_CHECKING:
    from agent.correlate.in_progress import ActiveEpisode
    from agent.kernel.helper_client import Helper
    from agent.kernel.kernel_source import KernelSource
    from agent.targets.targets import Targets


def kernel_symbols(wanted: bool) -> int:
    """A descriptor of /proc/kallsyms, whose addresses are visible if it is opened by root. -1 if not wanted, or if
    there is none.
    """
    try:
        return os.open("/proc/kallsyms", os.O_RDONLY | os.O_CLOEXEC) if wanted else -1
    except OSError:
        return -1


def investigator(
    kernel: KernelSource,
    helper: Helper,
    targets: Targets,
    kallsyms: int,
    active_episodes: Callable[[], list[ActiveEpisode]],
) -> Investigator | None:
    """None if no profiling family is available."""
    families = {n: f for n, f in kernel.loaded.families.items() if f.probe.profiling and f.programs}
    return (
        Investigator(kernel, helper, families, Naming(helper, targets.analyzers, kallsyms), active_episodes)
        if families
        else None
    )
