"""Addresses with TLS handshakes: how many succeeded and failed, as seen by their clients and servers on this host."""

from __future__ import annotations

import numpy as np

from agent.common.copies import pick
from agent.correlate.ends import MOST, EndWatch
from agent.correlate.rows import OfSecond, groups
from agent.correlate.view import NO_PEER, own_ends
from agent.tables import TABLES

_OK, FAILED = (TABLES["tls_handshake"].code("result", name) for name in ("ok", "failed"))
SERVER = TABLES["tls_handshake"].code("role", "server")
#: Columns that a symptom of handshakes reads.
READS = {"tls_handshake": ("netns", "saddr", "sport", "peer", "role", "result", "error", "duration_ns")}


def served_at(rows: np.ndarray) -> np.ndarray:
    """The server's end of each handshake."""
    return np.where(rows["role"] == SERVER, own_ends(rows), rows["peer"])


class HandshakeWatch(EndWatch):
    """One subject is one ip:port, in one network namespace. ok: successful handshakes; failed, served: failed ones, as
    seen by clients and by the server. med_ns, longest_ns: the median and the slowest successful one, as seen by clients
    of this host, else by the server.
    """

    metrics = ("ok", "failed", "served", "med_ns", "longest_ns")

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        done = rows["tls_handshake"]
        done = pick(done, (done["result"] == _OK) | (done["result"] == FAILED))
        ends = served_at(done)
        known = ends != NO_PEER
        done, ends = done[known], ends[known]
        if not len(done):
            return np.empty(0, np.int64)
        first, group = groups([done["netns"], ends])
        n, there, good = len(first), done["role"] == SERVER, done["result"] == _OK
        ok, ok_there, failed, served = (
            np.bincount(group[of], minlength=n).astype(np.float64)
            for of in (good & ~there, good & there, ~good & ~there, ~good & there)
        )
        chosen = np.sort(np.argsort(-(failed + served + ok + ok_there), kind="stable")[:MOST])
        slots = self.slots(done["netns"][first[chosen]], ends[first[chosen]], second)
        fits = slots >= 0
        values = {"ok": np.maximum(ok, ok_there), "failed": failed, "served": served}
        self.series.put(second, slots[fits], **{name: of[chosen][fits] for name, of in values.items()})
        for slot, one in zip(slots[fits].tolist(), chosen[fits].tolist(), strict=True):
            through = (group == one) & good
            took = done["duration_ns"][through & (there if not ok[one] else ~there)]
            if len(took):
                middle, longest = (np.array([float(of(took))]) for of in (np.median, np.max))
                self.series.put(second, np.array([slot]), med_ns=middle, longest_ns=longest)
        return slots[fits]
