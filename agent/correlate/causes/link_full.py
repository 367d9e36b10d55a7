"""More was sent through a network device of this host than its link takes: packets waited in its queue or were dropped
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.correlate.catalogue import Cause, Rule
from agent.correlate.causes import network_loss, network_rtt
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.full_link import READS, full_link
from agent.correlate.view import View
from agent.correlate.words import peer, process, render, value

#: It is surer than what it explains: slow round trips, and lost segments.
_SURER, _MOST = 1.15, 0.96


def _rule(symptom: str) -> Rule:
    rules = [rule for one in (network_rtt.CAUSE, network_loss.CAUSE) if (rule := one.explains.get(symptom))]

    def full(episode: Episode, view: View) -> Iterator[Verdict]:
        link = full_link(episode, view)
        if link is None:
            yield Verdict(CAUSE.name, 0.0, "", "no network device of this host had a full queue")
            return
        network = [v for rule in rules for v in rule(episode, view) if v.score > 0 and v.detail != "reset"]
        if not network:
            return
        best = max(network, key=lambda v: v.score)
        words = render(
            "the link of {device} on this host was full: {packets} waited in its queue{dropped}{sender}",
            device=link.device,
            packets=value(link.packets, "packet"),
            dropped=render(" and {n} more were dropped", n=value(link.dropped)) if link.dropped else "",
            sender=render(
                "; most unsent data was that of {who} to {peer} ({unsent})",
                who=process(*link.sender[:2]),
                peer=peer(link.sender[2]),
                unsent=value(link.unsent, "byte"),
            )
            if link.sender
            else "",
        )
        entry = item(
            "socket_queue",
            "packets in the device's queue",
            link.packets,
            "",
            column="queue",
            dropped=link.dropped,
            keys={"kind": "qdisc", "device": link.device},
        )
        comm, pid = link.sender[:2] if link.sender else ("", None)
        culprit = Culprit(pid, comm, link.device)
        yield Verdict(
            CAUSE.name, min(_MOST, best.score * _SURER), link.device, words, (entry, *best.evidence), "", culprit
        )

    return full


_EXPLAINS: dict[str, Callable[..., Iterator[Verdict]]] = {
    symptom: _rule(symptom) for symptom in {**network_rtt.CAUSE.explains, **network_loss.CAUSE.explains}
}

CAUSE = Cause(
    "link_full",
    29,
    "more was sent through a network device of this host than its link takes",
    {**network_rtt.CAUSE.reads, **network_loss.CAUSE.reads, **READS},
    "see who sends: tickscope query tcp_rtt --group-by comm,peer; ss -tinp; tc -s qdisc show dev DEVICE",
    _EXPLAINS,
)
