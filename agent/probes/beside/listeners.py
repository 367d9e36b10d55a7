"""Who listens on a port, as the tcp probe's kernel programs know it: from listen(), else from the first use of what was
accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agent.kernel import bpf
from agent.kernel.wire import decode

if TYPE_CHECKING:
    from agent.kernel.load import Loaded

MAP = "tcp_listeners"


class Listeners:
    """Reads the map ``MAP`` of the tcp family: (struct tcp_port, struct proc), where an unknown pid stands for several
    processes.
    """

    def __init__(self, loaded: Loaded) -> None:
        key, value = loaded.wire.dtype("tcp_port"), loaded.wire.dtype("proc")
        self._map = bpf.HashMap(loaded.families["tcp"].maps[MAP], key, value)

    def name(self, rows: np.ndarray) -> None:
        """Fills pid, proc_start_ns and comm of rows of ``socket_queue``, by netns and sport, where one process is
        known. Raises OSError.
        """
        ports, procs = self._map.read()
        if not len(ports) or not len(rows):
            return
        known = decode(procs, "socket_queue").rows
        known["comm"][known["pid"] < 0] = b""
        numbers = ports["netns"].astype(np.int64) << 16 | ports["port"]
        order = np.argsort(numbers)
        wanted = rows["netns"] << 16 | rows["sport"]
        at = order[np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(order) - 1)]
        found = numbers[at] == wanted
        for column in ("pid", "proc_start_ns", "comm"):
            rows[column] = np.where(found, known[column][at], rows[column])
