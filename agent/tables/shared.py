"""What tables are made of: ``table``, and the columns that several of them have."""

from __future__ import annotations

from agent.columns import Column, addr, enum, i64, peer, text
from agent.common.table import T_NS, Table


def table(name: str, meaning: str, *columns: Column, measure: str = "", latest_by: str = "", as_of: str = "") -> Table:
    """One with ``t_ns`` and these columns (see ``Table``)."""
    return Table(name, meaning, (T_NS, *columns), measure, latest_by, as_of)


PROC = (
    i64("pid", "process (thread group) id in the host's pid namespace", "", "process.pid"),
    i64("tid", "thread id", "", "thread.id"),
    i64("proc_start_ns", "start of the process, CLOCK_BOOTTIME; identifies it together with pid", "ns"),
    text("comm", 16, "command name", "process.executable.name"),
    i64("cgroup_id", "cgroup v2 id", "", "linux.cgroup.id"),
    text("container_id", 64, "container id, from the cgroup path; of nested containers the outermost", "container.id"),
)

#: Where a process ran, beside its container's id; empty: it ran in no unit, no container, no pod, or it is unknown.
UNIT = text("unit", 128, "systemd unit, from the cgroup path", "systemd.unit.name")
CONTAINER = (
    text("container_name", 128, "name of the container in its pod, or of its runtime", "k8s.container.name"),
    text("image", 256, "image of the container, as its runtime names it", "container.image.name"),
    text("pod", 253, "Kubernetes pod", "k8s.pod.name"),
    text("namespace", 63, "Kubernetes namespace", "k8s.namespace.name"),
)

SOCK = (
    i64("sock_id", "id of the socket, unique within a boot"),
    i64("netns", "inode number of the network namespace"),
    enum("family", "ipv4 ipv6", "address family of the socket", "network.type"),
    addr("saddr", "local address", "network.local.address"),
    i64("sport", "local port", "", "network.local.port"),
    addr("daddr", "remote address", "network.peer.address"),
    i64("dport", "remote port", "", "network.peer.port"),
    enum("role", "client server", "role of this host's socket; the client opened the connection", "network.role"),
    peer("remote ip:port", "peer"),
)

INTERVAL = i64("interval_ns", "length of the interval that ends at t_ns", "ns")
BASIS = enum("basis", "all sampled blocked", "all calls, calls in sampling windows, or only time blocked in calls")

#: Who had the processor meanwhile.
BY = (
    i64("by_pid", "the process that ran instead; 0: none, the CPU was idle"),
    i64("by_proc_start_ns", "start of that process, CLOCK_BOOTTIME", "ns"),
    text("by_comm", 16, "command name of that process"),
    i64("by_cgroup_id", "cgroup v2 id of that process"),
)

#: Of rows that are made while something is wrong only, and for seconds (agent/investigate/).
INVESTIGATION = text("investigation", 16, "id of the on-demand profile that made the row; empty: none")
