"""Whether who refuses connects to a server is the server's own kernel, or somebody on the way: a firewall. Pure.

A kernel that refuses a connect sends a reset, and we see it where the server is on this host: one that came from
nowhere was made by a firewall. So was an error that came by ICMP: it ends a connect at once or with the second SYN, and
there is no reset at all. A router says the same of a host that there is not: that one cannot be reached proves a
firewall only where the server is on this host. Where a port is redirected (Docker, a mesh), the kernel refuses at
another one: its reset is known by whom it goes to. Who asks for a neighbour by ARP in vain is told after three seconds,
whatever connects began meanwhile: these take any time up to that.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

import numpy as np

from agent.common.copies import pick
from agent.correlate.episode import Episode
from agent.correlate.local import in_netns
from agent.correlate.rows import as_bytes
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, own_ends, to_peer
from agent.tables import TABLES

READS = {
    "tcp_connect": ("netns", "peer", "result", "errno", "duration_ns"),
    "tcp_reset": ("netns", "peer", "role", "direction", "saddr", "sport", "complete"),
}
_OK, _FAILED = (TABLES["tcp_connect"].code("result", name) for name in ("ok", "failed"))
_SENT, _RECEIVED = (TABLES["tcp_reset"].code("direction", name) for name in ("sent", "received"))
#: What ICMP makes of a connect (net/ipv4/icmp.c, net/ipv6/icmp.c): host, network or protocol unreachable, or
#: prohibited.
_BY_ICMP = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.ENOPROTOOPT, errno.EPROTO)
_UNREACHED = (errno.EHOSTUNREACH, errno.ENETUNREACH)
#: Near by, what comes back while the SYN is still being sent ends only the next try, a second later.
_AT_ONCE_NS = SECOND // 2
_ARP_NS, _FEW = 2_500_000_000, 0.1
_LEAST, _MOST = 3, 0.5
_SLACK_NS, _BEFORE_NS = SECOND // 2, 120 * SECOND


@dataclass(frozen=True)
class Refusal:
    """n: connects that a firewall refused; how: icmp or reset; failed: that failed in all. sure: whether it can have
    been nothing else.
    """

    n: int
    how: str
    failed: int
    sure: bool = True


def refusal(raw: bytes, netns: int | None, episode: Episode, view: View) -> Refusal | None:
    """What a firewall did to connects to a peer while the episode lasted. None where too few failed, or the peer's own
    kernel refused them, or that is not known.
    """
    rows = in_netns(to_peer(view.during("tcp_connect", episode), raw), netns)
    failed = pick(rows, rows["result"] == _FAILED)
    if len(failed) < _LEAST:
        return None
    by_icmp, took = np.isin(failed["errno"], _BY_ICMP), failed["duration_ns"]
    at_once = by_icmp & (took >= 0) & (took < SECOND + _AT_ONCE_NS) & (took % SECOND < _AT_ONCE_NS)
    slow, icmp = np.count_nonzero(by_icmp & (took >= _ARP_NS)), int(np.count_nonzero(at_once))
    if slow <= _FEW * len(failed) and icmp > _MOST * np.count_nonzero(rows["result"] != _OK):
        sure = bool(view.servers.netns_of(raw, netns)) or not np.isin(failed["errno"][at_once], _UNREACHED).any()
        return Refusal(icmp, "icmp", len(failed), sure)
    refused = pick(failed, failed["errno"] == errno.ECONNREFUSED)
    if len(refused) <= _MOST * len(failed):
        return None
    begun, over = int(refused["t_ns"].min()) - _SLACK_NS, int(refused["t_ns"].max()) + _SLACK_NS
    resets = view.rings["tcp_reset"].between(begun, over)
    received = in_netns(to_peer(resets, raw), netns)
    received = received[received["direction"] == _RECEIVED]
    if len(received) <= _FEW * len(refused):
        reported = view.rings["tcp_reset"].between(begun - _BEFORE_NS, begun - 1)["direction"] == _RECEIVED
        return Refusal(len(refused), "icmp", len(failed)) if reported.any() else None  # else none may be told, or kept
    if not view.servers.netns_of(raw, netns) or not (received["complete"] == 1).all():
        return None  # what its kernel does is not seen
    sent = resets[resets["direction"] == _SENT]
    back = np.isin(as_bytes(sent["peer"]), as_bytes(own_ends(received)))
    sent = sent[back | (own_ends(sent) == np.frombuffer(raw, "V18")[0])]
    return Refusal(len(refused), "reset", len(failed)) if len(sent) <= _FEW * len(refused) else None
