"""The current state of the kernel's queues, read with pyroute2. For the command line, where the memory of that import
does not matter.

The agent's own readers (netlink.py, sockets.py) are many times cheaper; tests compare them with pyroute2.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from agent.common.address import with_port
from agent.queues.netlink import LISTEN, STATES, TC_H_ROOT

_LEAST_BYTES = 65536


def kernel_queues() -> Iterator[dict[str, Any]]:
    """Listening sockets, connections with at least ``_LEAST_BYTES`` waiting, devices; keys: agent/cli/queues.py."""
    from pyroute2 import DiagSocket, IPRoute

    with DiagSocket() as diag:
        diag.bind()
        for family in (socket.AF_INET, socket.AF_INET6):
            for sock in diag.get_sock_stats(family=family, states=STATES):
                local = with_port(sock["idiag_src"], sock["idiag_sport"])
                if sock["idiag_state"] == LISTEN:
                    yield {
                        "system": "accept",
                        "queue": local,
                        "length": sock["idiag_rqueue"],
                        "limit": sock["idiag_wqueue"],
                    }
                elif max(sock["idiag_rqueue"], sock["idiag_wqueue"]) >= _LEAST_BYTES:
                    peer = with_port(sock["idiag_dst"], sock["idiag_dport"])
                    yield {
                        "system": "connection",
                        "queue": f"{local} {peer}",
                        "length": max(sock["idiag_rqueue"], sock["idiag_wqueue"]),
                        "peer": peer,
                    }
    with IPRoute() as route:
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in route.get_links()}
        for qdisc in route.get_qdiscs():
            if qdisc["parent"] == TC_H_ROOT and (stats := qdisc.get_attr("TCA_STATS2")) is not None:
                counters = stats.get_attr("TCA_STATS_QUEUE")
                yield {
                    "system": "qdisc",
                    "queue": names.get(qdisc["index"], str(qdisc["index"])),
                    "length": counters["qlen"],
                    "drops": counters["drops"],
                }
