"""Peers that processes of this host connect to: how many connects were through, how many failed, and how many
connections were reset.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agent.common.alike import most
from agent.common.copies import pick
from agent.correlate.ends import MOST, EndWatch
from agent.correlate.rows import groups
from agent.correlate.view import NO_PEER
from agent.tables import TABLES

_OK, _FAILED = (TABLES["tcp_connect"].code("result", name) for name in ("ok", "failed"))
_RECEIVED, _SERVER = TABLES["tcp_reset"].code("direction", "received"), TABLES["tcp_reset"].code("role", "server")
_CLIENT = TABLES["tcp_rtt"].code("role", "client")
#: What a symptom of connects reads.
READS = {
    "tcp_connect": ("netns", "peer", "result", "errno", "duration_ns"),
    "tcp_reset": ("netns", "peer", "role", "direction"),
    "tcp_rtt": ("netns", "peer", "role", "samples"),
}
SLOW_NS = 200_000_000
_END = np.dtype([("netns", np.int64), ("peer", "V18")])


class ConnectWatch(EndWatch):
    """One subject is one ip:port that clients connect to, or have old connections to, from one network namespace.

    ok, failed: connects; broken: connections that were reset after they had been through: who refuses a connect does so
    by a reset as well. slow: of those that were through, how many took ``SLOW_NS``; longest_ns: what the slowest took.
    Of who is only talked with nothing is usual but that no connect fails: a server resets old connections for reasons
    of its own (a limit, a restart of one of its processes).
    """

    metrics = ("ok", "failed", "broken", "slow", "longest_ns")

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [
            _ends(rows.get("tcp_connect")),
            _ends(_resets(rows.get("tcp_reset"))),
            _ends(_talks(rows.get("tcp_rtt"))),
        ]
        ends = np.concatenate(parts)
        if not len(ends):
            return np.empty(0, np.int64)
        first, group = groups([ends["netns"], ends["peer"]])
        done, result = parts[0], rows["tcp_connect"]["result"] if len(parts[0]) else np.empty(0)
        of = group[: len(done)]
        ok, failed = (np.bincount(of, result == code, len(first)) for code in (_OK, _FAILED))
        took = np.where(result == _OK, rows["tcp_connect"]["duration_ns"], 0) if len(parts[0]) else np.empty(0)
        slow, longest = np.bincount(of, took >= SLOW_NS, len(first)), most(np.zeros(len(first)), of, took)
        resets = np.bincount(group[len(done) : len(done) + len(parts[1])], minlength=len(first))
        chosen = np.sort(np.argsort(-(ok + failed + resets), kind="stable")[:MOST])
        chosen = chosen[ends["peer"][first[chosen]] != NO_PEER]
        slots = self.slots(ends["netns"][first[chosen]], ends["peer"][first[chosen]], second)
        fits, at = slots >= 0, chosen
        self.series.put(
            second,
            slots[fits],
            ok=ok[at][fits],
            failed=failed[at][fits],
            slow=slow[at][fits],
            longest_ns=np.where(ok > 0, longest, np.nan)[at][fits],
            broken=np.where(ok + failed + resets > 0, np.maximum(resets - failed, 0), np.nan)[at][fits],
        )
        return slots[fits]


def _ends(rows: np.ndarray | None) -> np.ndarray:
    out = np.empty(0 if rows is None else len(rows), _END)
    if rows is not None:
        out["netns"], out["peer"] = rows["netns"], rows["peer"]
    return out


def _resets(rows: np.ndarray | None) -> np.ndarray | None:
    """Those that reached a client."""
    return None if rows is None else pick(rows, (rows["direction"] == _RECEIVED) & (rows["role"] != _SERVER))


def _talks(rows: np.ndarray | None) -> np.ndarray | None:
    """Of clients whose connections are old: that they connect to nobody is usual, and seen."""
    return None if rows is None else pick(rows, (rows["role"] == _CLIENT) & (rows["samples"] > 0))
