"""A program that retries failed requests at once keeps the server so busy that others are impacted."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, on_peers
from agent.correlate.words import Words, peer, process, render, value

_LEAD_NS = 5 * SECOND


def itself(episode: Episode, _view: View) -> Iterator[Verdict]:
    """For the storm's own symptom, if the cause of the failures is unknown."""
    yield _verdict(episode, 0.92, render("it retried failed connects without waiting"))


def of_port(episode: Episode, view: View) -> Iterator[Verdict]:
    """For the server of a port. The episode's key begins with the network namespace, followed by the port."""
    port = next(part for part in episode.key[1:] if isinstance(part, int))
    for storm in _near(episode, view):
        netns, raw = _at(storm)
        if int.from_bytes(raw[16:], "little") != port:
            continue
        server = view.server(raw, netns, episode)
        if netns == episode.key[0] or (server is not None and server[1] == episode.pid):
            yield _verdict(storm, 0.92, _words(storm))
            return


def of_peer(episode: Episode, view: View) -> Iterator[Verdict]:
    """For a peer itself. The episode's key: network namespace, peer."""
    for storm in _near(episode, view):
        if _at(storm) == episode.key[:2]:
            yield _verdict(storm, 0.9, _words(storm))
            return


def requested(episode: Episode, view: View) -> Iterator[Verdict]:
    """For a process that waits for the same server."""
    storms = _near(episode, view)
    for p in on_peers(episode, view) if storms else ():
        storm = next((s for s in storms if _at(s)[1] == p.raw and s.pid != episode.pid), None)
        if storm is not None and p.share >= SHARE and not p.slower:
            yield _verdict(storm, 0.98 * p.share * p.sure, _words(storm))


def _near(episode: Episode, view: View) -> list[Episode]:
    return [s for s in view.storms if s.start_ns <= episode.end_ns and s.end_ns >= episode.start_ns - _LEAD_NS]


def _at(storm: Episode) -> tuple[int, bytes]:
    netns, raw = storm.key[:2]
    assert isinstance(netns, int)
    assert isinstance(raw, bytes)
    return netns, raw


def _words(storm: Episode) -> Words:
    return render(
        "{who} retried failed connects without waiting, {n} in all, up to {rate} (usually {base})",
        who=process(storm.comm, storm.pid),
        n=value(storm.facts["n"], "time"),
        rate=value(storm.value, "1/s"),
        base=value(storm.base),
    )


def _verdict(storm: Episode, score: float, words: Words) -> Verdict:
    raw = _at(storm)[1]
    name = peer(raw)
    rate = item(
        "tcp_connect", "connects", storm.value, "1/s", baseline=storm.base, keys={"peer": name, "pid": storm.pid}
    )
    failed = item(
        "tcp_connect",
        "attempts that failed",
        min(storm.facts["failed"], storm.facts["n"]),
        "",
        column="result",
        keys={"peer": name, "pid": storm.pid},
    )
    return Verdict(
        CAUSE.name, score, f"retries to {name}", words, (rate, failed), "", Culprit(storm.pid, storm.comm, name)
    )


CAUSE = Cause(
    "retry_storm",
    48,
    "a program repeated failed connects at once, without back-off",
    PEERS,
    "use back-off with jitter and a maximum number of attempts; the program: tickscope"
    " query tcp_connect --group-by comm",
    {
        "retry_storm": itself,
        "service_latency": of_port,
        "accept_overflow": of_port,
        "connect_latency": of_peer,
        "decision_latency": requested,
        "service_errors": requested,
    },
)
