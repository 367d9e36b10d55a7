"""The subjects that a finding names beside its main one: each process once, even if it was late on a port, idle and a
server as well. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable

from agent.correlate.episode import Culprit, Episode
from agent.correlate.words import process


def others(main: Episode, episodes: Iterable[Episode], culprit: Culprit) -> list[Episode]:
    """For each process but the main one and the bare culprit, the episode with the shortest name; sorted by name."""
    every = [main, *episodes]
    serving = {e.key[1]: e.pid for e in every if _is_process(e) and "port" in e.facts}
    shortest: dict[Hashable, Episode] = {}
    for e in sorted(every, key=lambda e: (len(e.subject), e.subject)):
        shortest.setdefault(_who(e, serving), e)
    shortest.pop(_who(main, serving))
    return sorted((e for e in shortest.values() if not _is(culprit, e)), key=lambda e: e.subject)


def _is(culprit: Culprit, episode: Episode) -> bool:
    """Whether the cause's words already name it so. Its port would be new information."""
    return (
        episode.pid is not None and episode.pid == culprit.pid and episode.subject == process(episode.comm, episode.pid)
    )


def _is_process(episode: Episode) -> bool:
    """Whether its subject is a process, with or without its port. A limiter of a process is a subject of its own."""
    return episode.pid is not None and episode.subject.partition(" on ")[0].removeprefix("process ") == process(
        episode.comm, episode.pid
    )


def _who(episode: Episode, serving: dict[object, int | None]) -> Hashable:
    if _is_process(episode):
        return episode.pid
    raw = episode.key[-1] if episode.pid is None and len(episode.key) == 2 else b""  # of a broker (system, peer)
    if isinstance(episode.key[0], str) and isinstance(raw, bytes) and len(raw) == 18:
        port = int.from_bytes(raw[16:], "little")
        if port in serving and _is_loopback(raw[:16]):
            return serving[port]
    return episode.subject


def _is_loopback(raw: bytes) -> bool:
    address = ipaddress.IPv6Address(raw)
    return (address.ipv4_mapped or address).is_loopback
