"""Started programs; see bpf/exec.bpf.c. Produces no table: other families subscribe to its records."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program, Ring

PROBE = Probe(
    name="exec",
    programs=(
        Program("on_exec", target="sched_process_exec", loses="programs started later are found by a scan every 10 s"),
    ),
    rings=(Ring("exec_events", "exec_event"),),
    options={"EXEC_PAGES": 16},
)
