"""How long the host takes to answer a SYN, for seconds; see bpf/synack.bpf.c and agent/investigate/."""

from __future__ import annotations

from agent.kernel.probe import Probe, Program

PROBE = Probe(
    name="synack",
    parts=("profile.h", "synack.h"),
    programs=(
        Program("synack_on_send", target="net_dev_queue", on_demand=True, loses="how long a SYN waits for its answer"),
        Program(
            "synack_on_receive", target="netif_receive_skb", on_demand=True, loses="how long a SYN waits for its answer"
        ),
    ),
    maps=("synack_sums", "synack_syns"),
    counts=("synack_sums",),
    profiling=True,
)
