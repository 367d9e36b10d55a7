"""Processes that are stopped, go on, and end, and who made them; see bpf/process.bpf.c."""

from __future__ import annotations

from functools import partial

from agent.kernel.probe import Probe, Program, Ring
from agent.kernel.wire_structs import decode

PROBE = Probe(
    name="process",
    programs=(
        Program("process_on_signal", target="signal_generate", loses="who is stopped, and who ended whom"),
        Program("process_on_exit", target="sched_process_exit", loses="processes that end"),
        Program("process_on_freeze", target="cgroup_freeze", loses="containers that are paused"),
        Program("process_on_unfreeze", target="cgroup_unfreeze", loses="containers that go on"),
    ),
    rings=(Ring("process_events", "process_event", partial(decode, table="process_event")),),
    counts=("process_shares",),
)
