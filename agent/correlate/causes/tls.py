"""A TLS handshake took long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.starved import READS, cpu_share
from agent.correlate.view import View
from agent.correlate.waits import HANDSHAKES, PEERS, SHARE, on_peers, spent
from agent.correlate.words import peer, span, tell


def handshakes(episode: Episode, view: View) -> Iterator[Verdict]:
    rows, lost, threaded = spent(episode, view, "tls_handshake")
    share = min(1.0, float(rows["duration_ns"].sum()) / lost) if lost else 0.0
    if share < SHARE:
        took = tell("TLS handshakes took {took} of it", took=span(float(rows["duration_ns"].sum())))
        entry = item(
            "tls_handshake",
            "time in TLS handshakes",
            float(rows["duration_ns"].sum()),
            "ns",
            column="duration_ns",
            pid=episode.pid,
        )
        yield Verdict(CAUSE.name, 0.0, "", took if len(rows) else "no slow TLS handshake in it", (entry,))
        return
    longest = float(rows["duration_ns"].max())
    name = peer(rows["peer"][int(np.argmax(rows["duration_ns"]))].tobytes())
    on_the_way = any(p.name == name and (p.slower or p.again) for p in on_peers(episode, view))
    words = tell("a TLS handshake{by} took {longest}", by=f" with {name}" if name else "", longest=span(longest))
    yield Verdict(
        CAUSE.name,
        # Where its round trips were slow, it is the network's.
        (0.98 if threaded else 0.85) * share * (0.5 if on_the_way else 1.0) * (1 - cpu_share(episode, view)),
        episode.scope,
        words,
        (
            item(
                "tls_handshake",
                "handshakes inside decisions",
                len(rows),
                "",
                longest_ns=longest,
                peer=name,
                pid=episode.pid,
            ),
        ),
    )


CAUSE = Cause(
    "tls",
    60,
    "a TLS handshake took long",
    {**HANDSHAKES, **PEERS, **READS},
    "keep connections open, or resume sessions; see which peer: tickscope query tls_handshake --group-by peer",
    {"decision_latency": handshakes, "service_latency": handshakes},
)
