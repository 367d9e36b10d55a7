"""Peers that processes of this host connect to: successful and failed connects, and connections that were reset."""

from __future__ import annotations

import numpy as np

from agent.common.alike import most
from agent.common.copies import pick
from agent.correlate.ends import MOST, EndWatch
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.rows import OfSecond, groups
from agent.correlate.view import NO_PEER, own_ends
from agent.tables import TABLES

_OK, _FAILED = (TABLES["tcp_connect"].code("result", name) for name in ("ok", "failed"))
_RECEIVED, _SENT = (TABLES["tcp_reset"].code("direction", name) for name in ("received", "sent"))
_SERVER = TABLES["tcp_reset"].code("role", "server")
_CLIENT = TABLES["tcp_rtt"].code("role", "client")
#: Columns that a symptom of connects reads.
READS = {
    "tcp_connect": ("netns", "peer", "result", "errno", "duration_ns"),
    "tcp_reset": ("netns", "peer", "role", "direction"),
    "tcp_rtt": ("netns", "peer", "role", "samples"),
}
SLOW_NS = 200_000_000
_END = np.dtype([("netns", np.int64), ("peer", "V18")])


class ConnectWatch(EndWatch):
    """One subject is one ip:port that clients connect to, or have old connections to, from one network namespace.

    ok, failed: connects; broken: established connections that were reset (a refused connect is a reset, too). slow:
    successful connects that took ``SLOW_NS``; longest_ns: the slowest. For a peer with only old connections, the
    baseline is that no connect fails; resets have none, since a server resets old connections for reasons of its own (a
    limit, a restart of a worker).
    """

    metrics = ("ok", "failed", "broken", "slow", "longest_ns")

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        parts = [
            _ends(rows["tcp_connect"]),
            _ends(_resets(rows["tcp_reset"])),
            _ends(_talks(rows["tcp_rtt"])),
        ]
        ends = np.concatenate(parts)
        if not len(ends):
            return np.empty(0, np.int64)
        first, group = groups([ends["netns"], ends["peer"]])
        done, result = parts[0], rows["tcp_connect"]["result"]
        group_of_connect = group[: len(done)]
        ok, failed = (np.bincount(group_of_connect, result == code, len(first)) for code in (_OK, _FAILED))
        took = np.where(result == _OK, rows["tcp_connect"]["duration_ns"], 0)
        slow, longest = (
            np.bincount(group_of_connect, took >= SLOW_NS, len(first)),
            most(np.zeros(len(first)), group_of_connect, took),
        )
        resets = np.bincount(group[len(done) : len(done) + len(parts[1])], minlength=len(first))
        chosen = np.sort(np.argsort(-(ok + failed + resets), kind="stable")[:MOST])
        chosen = chosen[ends["peer"][first[chosen]] != NO_PEER]
        slots = self.slots(ends["netns"][first[chosen]], ends["peer"][first[chosen]], second)
        return self.put(
            second,
            slots,
            ok=ok[chosen],
            failed=failed[chosen],
            slow=slow[chosen],
            longest_ns=np.where(ok > 0, longest, np.nan)[chosen],
            broken=np.where(ok + failed + resets > 0, np.maximum(resets - failed, 0), np.nan)[chosen],
        )


def _ends(rows: np.ndarray) -> np.ndarray:
    out = np.empty(len(rows), _END)
    out["netns"], out["peer"] = rows["netns"], rows["peer"]
    return out


def _resets(rows: np.ndarray) -> np.ndarray:
    """Resets that reached a client."""
    return pick(rows, (rows["direction"] == _RECEIVED) & (rows["role"] != _SERVER))


def sent_here(resets: np.ndarray, raw: bytes, netns: int) -> int:
    """How many of them a process of this host sent that serves this ip:port, as one does that closes a connection with
    unread data.
    """
    sent = pick(resets, (resets["direction"] == _SENT) & (resets["role"] == _SERVER))
    sent = in_netns(sent, netns) if is_loopback(raw) else sent
    return int(np.count_nonzero(own_ends(sent) == np.frombuffer(raw, "V18")[0]))


def _talks(rows: np.ndarray) -> np.ndarray:
    """Clients with old connections: it is seen, and usual, that they make no new ones."""
    return pick(rows, (rows["role"] == _CLIENT) & (rows["samples"] > 0))
