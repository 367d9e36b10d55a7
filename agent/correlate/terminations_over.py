"""Whether the termination of a process still mattered when others were impacted: what came after it, and whether
another process had replaced it. Pure.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.terminations import Termination
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, to_peer
from agent.tables import TABLES

LESS = 0.6  # factor for a termination that was over
_CONNECTED = TABLES["tcp_connect"].code("result", "ok")
_CONNECTS = 2
_SOON = 0.25  # of the episode, and a second at most
_TICK_NS = 10_000_000
#: A program that runs for longer than this between two terminations had recovered: it is not in a restart loop.
_LOOP_NS = 10 * SECOND


def over(termination: Termination, raw: bytes, served: list[tuple[str, int]], episode: Episode, view: View) -> bool:
    """Whether another process had replaced a terminated one: it started before an orderly end, as in a reload; or it
    was connected to before anything was slow, or soon after.
    """
    if termination.stop or not termination.replaced:
        return False
    talks = view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
    begun = talks["proc_start_ns"][talks["pid"] == served[0][1]]
    if termination.orderly and len(begun) and begun.max() < termination.from_ns - _TICK_NS:
        return True
    connects = view.own(view.rings["tcp_connect"].between(termination.from_ns, episode.start_ns + SECOND), episode)
    connects = to_peer(connects, raw)
    times = connects["t_ns"][connects["result"] == _CONNECTED]
    before = episode.start_ns
    if termination.lives == 1:
        before += min(SECOND, int(_SOON * (episode.end_ns - episode.start_ns)))
    return bool(np.count_nonzero(times <= before) >= _CONNECTS)


def back(termination: Termination, talks: np.ndarray) -> bool:
    """Whether another process of that program, started after the termination, talks."""
    return bool(
        np.any(
            (talks["comm"] == termination.comm.encode()) & (talks["proc_start_ns"] >= termination.from_ns - _TICK_NS)
        )
    )


def after(termination: Termination, episode: Episode) -> float:
    """How well a termination explains an episode, by the share of the episode after it; of a restart loop, by the share
    after the first of its terminations.
    """
    began_ns = termination.from_ns
    if termination.last_ns - termination.first_ns <= (termination.lives - 1) * _LOOP_NS:
        began_ns = termination.first_ns or began_ns
    lasted, before = episode.end_ns - episode.start_ns, began_ns - episode.start_ns
    return float(np.clip(2 * (1 - before / max(lasted, 1)), 0.0, 1.0))
