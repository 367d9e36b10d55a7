"""Network devices of this host whose queue was full: more was sent than the link takes. Pure; from rows of
``socket_queue``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import text
from agent.tables import TABLES

READS = {"socket_queue": ("kind", "queue", "drops", "send_q_bytes", "device", "peer")}
_DEVICE, _CONNECTION = (TABLES["socket_queue"].code("kind", kind) for kind in ("qdisc", "connection"))
_PACKETS = 4  # in the queue at one poll, from which a device is busy; any drop makes it so, too
_MOST, _USUAL = 0.6, 0.2  # share of polls with a busy device: during the episode, and at most in the minute before
_BEFORE_NS, _AROUND_NS = 60 * SECOND, SECOND


@dataclass(frozen=True)
class FullLink:
    """packets: the longest queue; dropped: packets. sender: (comm, pid, peer) of the connection with most unsent data,
    if it is of this network namespace; unsent: its bytes.
    """

    device: str
    packets: int
    dropped: int
    sender: tuple[str, int, bytes] | None
    unsent: int


def full_link(episode: Episode, view: View) -> FullLink | None:
    """The device with the longest queue, if one was full for most of the episode and not before."""
    return view.once(_full_link, episode)


def _full_link(episode: Episode, view: View) -> FullLink | None:
    from_ns, to_ns = episode.start_ns - _AROUND_NS, episode.end_ns + _AROUND_NS
    rows = view.rings["socket_queue"].between(from_ns - _BEFORE_NS, to_ns)
    devices = rows[rows["kind"] == _DEVICE]
    found = []
    if len(devices):
        first, group = groups([devices["device"]])
        for n in range(len(first)):
            its = devices[group == n]
            dropped = np.diff(its["drops"], prepend=its["drops"][:1]).clip(0)
            busy, now = (its["queue"] >= _PACKETS) | (dropped > 0), its["t_ns"] >= from_ns
            if busy[now].sum() >= 2 and busy[now].mean() >= _MOST and busy[~now].sum() <= _USUAL * (~now).sum():
                found.append((int(its["queue"][now].max()), text(its["device"][0]), int(dropped[now].sum())))
    if not found:
        return None
    packets, device, lost = max(found)
    sends = rows[(rows["kind"] == _CONNECTION) & (rows["t_ns"] >= from_ns) & (rows["pid"] > 0)]
    sends = sends[sends["send_q_bytes"] > 0]
    top = sends[int(np.argmax(sends["send_q_bytes"]))] if len(sends) else None
    sender = (text(top["comm"]), int(top["pid"]), top["peer"].tobytes()) if top is not None else None
    return FullLink(device, packets, lost, sender, int(top["send_q_bytes"]) if top is not None else 0)
