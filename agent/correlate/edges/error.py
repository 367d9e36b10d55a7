"""A server that answers with errors because it, or another one that it called, gave up waiting for a server of this
host.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.abandoned import READS as GIVEN_UP
from agent.correlate.abandoned import given_up
from agent.correlate.answered import READS, FailedHop, chain
from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.path import merged
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, to_peer

_SURE = 0.9
_CONNECTS = tuple(dict.fromkeys((*READS["tcp_connect"], *GIVEN_UP["tcp_connect"])))


def gave_up(episode: Episode, view: View) -> Iterator[Waited]:
    found = chain(episode, view)
    if found and (end := found[-1]).pids and end.how in ("given_up", "waited"):
        through = tuple((one.comm, one.pids[0]) for one in found[:-1] if one.pids)
        spans = _spans(end, episode, view)
        yield Waited(end.pids[0], end.comm, 1.0, _SURE, NOT_ASKED, end.where, spans=spans, through=through)


def _spans(end: FailedHop, episode: Episode, view: View) -> tuple[tuple[int, int], ...]:
    """The times of the requests to it that were given up; it need not notice that at once."""
    closes, connects = (
        view.rings[table].between(episode.start_ns, episode.end_ns) for table in ("tcp_close", "tcp_connect")
    )
    rows = to_peer(given_up(closes, connects), end.raw)
    begins, ends = merged(rows["t_ns"] - rows["duration_ns"], rows["t_ns"] + SECOND)
    return tuple(zip(begins.tolist(), ends.tolist(), strict=True))


EDGE = EdgeKind("error", {**READS, "tcp_connect": _CONNECTS}, gave_up, ("service_errors",))
