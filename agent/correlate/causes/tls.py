"""A TLS handshake took long, or failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from agent.correlate.catalogue import Cause
from agent.correlate.cpu_starvation import READS, cpu_share
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.handshakes import FAILED, SERVER, served_at
from agent.correlate.handshakes import READS as HANDSHAKE_READS
from agent.correlate.local import in_netns
from agent.correlate.peer_path import peer_path
from agent.correlate.view import View, place, to_peer
from agent.correlate.waits import HANDSHAKES, PEERS, SHARE, on_peers, spent
from agent.correlate.words import peer, process, render, span, text, value

_CERTIFICATE = "certificate: "
_MOST = 8  # processes that are examined
_MOSTLY = 0.5  # handshakes that failed, for each connection that was reset


def handshakes(episode: Episode, view: View) -> Iterator[Verdict]:
    rows, lost, threaded = spent(episode, view, "tls_handshake")
    share = min(1.0, float(rows["duration_ns"].sum()) / lost) if lost else 0.0
    if share < SHARE:
        took = render("TLS handshakes took {took} of it", took=span(float(rows["duration_ns"].sum())))
        entry = item(
            "tls_handshake",
            "time in TLS handshakes",
            float(rows["duration_ns"].sum()),
            "ns",
            column="duration_ns",
            keys={"pid": episode.pid},
        )
        yield Verdict(CAUSE.name, 0.0, "", took if len(rows) else "no slow TLS handshake in it", (entry,))
        return
    longest = float(rows["duration_ns"].max())
    raw = rows["peer"][int(np.argmax(rows["duration_ns"]))].tobytes()
    name = peer(raw)
    on_the_way = any(p.name == name and (p.slower or p.again) for p in on_peers(episode, view))
    words = render("a TLS handshake{by} took {longest}", by=f" with {name}" if name else "", longest=span(longest))
    yield Verdict(
        CAUSE.name,
        # If its round trips were slow, the network is the cause.
        (0.98 if threaded else 0.85) * share * (0.5 if on_the_way else 1.0) * (1 - cpu_share(episode, view)),
        _with(raw, view.netns(episode, raw)) if name else episode.scope,
        words,
        (
            item(
                "tls_handshake",
                "handshakes inside decisions",
                len(rows),
                "",
                longest_ns=longest,
                keys={"peer": name, "pid": episode.pid},
            ),
        ),
    )


def slow(episode: Episode, view: View) -> Iterator[Verdict]:
    """Without another symptom, and while the network path is as quick as usual."""
    netns, raw = cast("tuple[int, bytes]", episode.key)
    link = peer_path(episode, view)
    if link.cpu_saturated:
        yield Verdict(CAUSE.name, 0.0, "", "the CPUs of this host were busy, which slows all of its programs")
        return
    if link.path.slower or link.again:
        return
    quick = link.path.quickest if link.path.quickest is not None else link.path.worst
    if quick is None or quick * 1e3 >= SHARE * episode.value:
        return
    rows = in_netns(view.during("tls_handshake", episode), netns)
    who = {*np.unique(rows["pid"][served_at(rows) == np.frombuffer(raw, "V18")[0]])[:_MOST].tolist()}
    if any(view.starved_ns(pid, episode) >= SHARE * (episode.end_ns - episode.start_ns) for pid in who):
        yield Verdict(CAUSE.name, 0.0, "", "their clients waited for a CPU")
        return
    words = render(
        "its TLS handshakes took up to {longest} while a round trip to it took {quick}",
        longest=span(episode.value),
        quick=span(quick * 1e3),
    )
    entry = item(
        "tls_handshake", "the slowest handshake", episode.value, "ns", column="duration_ns", keys={"peer": link.name}
    )
    yield Verdict(CAUSE.name, 0.8, _with(raw, netns), words, (entry,), "", Culprit(object=link.name))


def _with(raw: bytes, netns: int | None) -> str:
    return f"handshakes with {place(peer(raw), raw, netns)}"


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """From the errors of its clients, if they are on this host, since these give the reason; where the server refused
    the certificates of its clients, it alone knows why.
    """
    netns, raw = cast("tuple[int, bytes]", episode.key)
    rows = in_netns(view.during("tls_handshake", episode), netns)
    rows = rows[(rows["result"] == FAILED) & (served_at(rows) == np.frombuffer(raw, "V18")[0])]
    if not len(rows):
        return
    asking, refused = rows[rows["role"] != SERVER], rows[_by_certificate(rows)]
    if len(refused) and (refused["role"] == SERVER).all():
        rows = refused
    elif len(asking):
        rows = asking
    why, many = np.unique(rows["error"][rows["error"] != b""], return_counts=True)
    reason = text(why[np.argmax(many)]) if len(why) else ""
    name, n = peer(raw), value(len(rows), "TLS handshake")
    if not reason.startswith(_CERTIFICATE):
        words = render("{n} with it failed{why}", n=n, why=f", mostly with: {reason}" if reason else "")
    elif rows["role"][0] == SERVER:
        connects = in_netns(to_peer(view.during("tcp_connect", episode), raw), netns)
        clients = np.unique(connects["comm"])
        words = render(
            "{server} refused the certificate of {client} in {n}: {why}",
            server=process(text(rows["comm"][0]), int(rows["pid"][0])),
            client=f"its client {text(clients[0])}" if len(clients) == 1 else "its clients",
            n=n,
            why=reason.removeprefix(_CERTIFICATE),
        )
    else:
        words = render("its certificate was refused in {n}: {why}", n=n, why=reason.removeprefix(_CERTIFICATE))
    entry = item(
        "tls_handshake", "handshakes failed", len(rows), "", column="result", error=reason, keys={"peer": name}
    )
    yield Verdict(
        CAUSE.name,
        0.9 if reason.startswith(_CERTIFICATE) else 0.75,
        _with(raw, netns),
        words,
        (entry,),
        "certificate" if reason.startswith(_CERTIFICATE) else "",
        Culprit(object=name),
    )


def resetting(episode: Episode, view: View) -> Iterator[Verdict]:
    """A server that refuses a client's certificate has not read what that one sent, and so resets the connection."""
    netns, raw = cast("tuple[int, bytes]", episode.key)
    resets = in_netns(to_peer(view.during("tcp_reset", episode), raw), netns)
    for verdict in failing(episode, view):
        many = (verdict.evidence[0].value or 0) >= _MOSTLY * len(resets) > 0
        if many and verdict.detail == "certificate":
            yield verdict


def _by_certificate(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.char.startswith(rows["error"], _CERTIFICATE.encode()))


CAUSE = Cause(
    "tls",
    60,
    "a TLS handshake took long, or failed",
    {
        **HANDSHAKES,
        **PEERS,
        **READS,
        "tls_handshake": (*HANDSHAKES["tls_handshake"], *HANDSHAKE_READS["tls_handshake"]),
    },
    "if they fail, check the certificate and the TLS versions of both ends (openssl s_client -connect ADDRESS); if they"
    " are slow, keep connections open, or resume sessions: tickscope query tls_handshake --group-by peer,error",
    {
        "decision_latency": handshakes,
        "service_latency": handshakes,
        "handshake_failures": failing,
        "connect_failures": resetting,
        "handshake_latency": slow,
    },
)
