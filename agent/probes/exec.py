"""Started programs; see bpf/exec.bpf.c. Of no table: other parts subscribe to them."""

from __future__ import annotations

import numpy as np

from agent.kernel.probe import Probe, Program, Ring
from agent.kernel.wire_structs import OUTSIDE, signed

#: A started program. t_ns, proc_start_ns: of the exec, and of its process, CLOCK_BOOTTIME. pid: of the agent's PID
#: namespace. cgroup_id: NULL_I64 if unknown. comm: the name of the process. mount_namespace: its inode. root_device
#: (as in the kernel, MKDEV), root_inode: of the process's root directory.
STARTED = np.dtype(
    [
        ("t_ns", "<i8"),
        ("pid", "<i8"),
        ("proc_start_ns", "<i8"),
        ("cgroup_id", "<i8"),
        ("comm", "S16"),
        ("mount_namespace", "<i8"),
        ("root_device", "<i8"),
        ("root_inode", "<i8"),
    ]
)


def decode_started(records: np.ndarray) -> np.ndarray:
    """Records of ``struct exec_event`` -> ``STARTED``, without those outside of the agent's PID namespace, which it
    cannot examine.
    """
    records = records[records["proc"]["pid"] < OUTSIDE]
    out, proc = np.empty(len(records), STARTED), records["proc"]
    for name in ("t_ns", "mount_namespace", "root_device", "root_inode"):
        out[name] = records[name]
    for name in ("pid", "proc_start_ns", "comm"):
        out[name] = proc[name]
    out["cgroup_id"] = signed(proc["cgroup_id"])
    return out


PROBE = Probe(
    name="exec",
    programs=(
        Program("on_exec", target="sched_process_exec", loses="programs started later are found by a scan every 10 s"),
    ),
    rings=(Ring("exec_events", "exec_event", decode_started),),
    options={"EXEC_PAGES": 16},
)
