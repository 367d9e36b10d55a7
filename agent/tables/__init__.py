"""Every table, declared once: those of a topic in a file here, that of a probe of its own in the probe's file
(agent/probes/NAME.py).

The numpy dtype of a batch, the store's columns, the CLI's columns and the OTLP attributes all follow from it; the
kernel's wire structs (bpf/events.h) are decoded into it by field name (agent/kernel/wire_structs.py).

``t_ns`` is CLOCK_BOOTTIME of the host where the thing happened. The other COMMON columns (boot_id, host, wall_*) are
not stored per row: a segment knows its boot id and host, and wall time is derived late, through the offset history.
"""

from __future__ import annotations

from pathlib import Path

from agent.common.table import Tables
from agent.tables import clocks, findings, limiters, network, own, profiles, queues, resources, work
from agent.tables.brought import bring
from agent.tables.names import CAUSES, SYMPTOMS

__all__ = ["CAUSES", "SYMPTOMS", "TABLES"]

#: In the order in which they are shown.
TABLES = Tables(
    (
        *network.DECLARED,
        *work.DECLARED,
        *clocks.DECLARED,
        *limiters.DECLARED,
        *queues.DECLARED,
        *resources.DECLARED,
        *profiles.DECLARED,
        *findings.DECLARED,
        *own.DECLARED,
    )
)
bring(Path(__file__).parents[1] / "probes", TABLES)
