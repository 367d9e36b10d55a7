"""Whether connects to a server are refused by the server's own kernel, or by a firewall on the path. Pure.

A kernel that refuses a connect sends a reset, which is visible if the server is on this host: a received reset without
a sent one was made by a firewall. So was an ICMP error, which ends a connect at once or with the second SYN, without a
reset. A router sends ICMP errors for a missing host, too, so "host unreachable" proves a firewall only if the server is
on this host. If a port is redirected (Docker, a service mesh), the kernel refuses at another port: its reset is
recognised by its receiver. A failed ARP lookup is reported after three seconds to all connects that began meanwhile, so
these take any time up to that.
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
#: The errors of a connect for an ICMP message (net/ipv4/icmp.c, net/ipv6/icmp.c): host, network or protocol
#: unreachable, or prohibited.
_BY_ICMP = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.ENOPROTOOPT, errno.EPROTO)
_UNREACHED = (errno.EHOSTUNREACH, errno.ENETUNREACH)
#: If the reply comes while the SYN is still being sent, it ends only the next try, a second later.
_AT_ONCE_NS = SECOND // 2
_ARP_NS, _FEW = 2_500_000_000, 0.1
_LEAST, _MOST = 3, 0.5
_SLACK_NS, _BEFORE_NS = SECOND // 2, 120 * SECOND


@dataclass(frozen=True)
class Refusal:
    """n: connects that a firewall refused; how: icmp or reset; failed: all failed connects. sure: whether nothing else
    is possible.
    """

    n: int
    how: str
    failed: int
    sure: bool = True


def refusal(raw: bytes, netns: int | None, episode: Episode, view: View) -> Refusal | None:
    """What a firewall did to connects to a peer during the episode. None if too few failed, if the peer's own kernel
    refused them, or if that is unknown.
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
        # else resets may not be recorded, or no longer kept
        return Refusal(len(refused), "icmp", len(failed)) if reported.any() else None
    if not view.servers.netns_of(raw, netns) or not (received["complete"] == 1).all():
        return None  # its kernel is not visible
    sent = resets[resets["direction"] == _SENT]
    back = np.isin(as_bytes(sent["peer"]), as_bytes(own_ends(received)))
    sent = sent[back | (own_ends(sent) == np.frombuffer(raw, "V18")[0])]
    return Refusal(len(refused), "reset", len(failed)) if len(sent) <= _FEW * len(refused) else None
