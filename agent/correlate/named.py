"""Who is named beside the one that a finding is about: each process once, though it was late on a port, did nothing and
is somebody's server as well. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable

from agent.correlate.episode import Culprit, Episode
from agent.correlate.words import process


def others(main: Episode, episodes: Iterable[Episode], culprit: Culprit) -> list[Episode]:
    """Of each that is neither the main one's nor the bare culprit, the episode with the shortest name; by name."""
    every = [main, *episodes]
    serving = {e.key[1]: e.pid for e in every if _is_process(e) and "port" in e.facts}
    shortest: dict[Hashable, Episode] = {}
    for e in sorted(every, key=lambda e: (len(e.subject), e.subject)):
        shortest.setdefault(_who(e, serving), e)
    shortest.pop(_who(main, serving))
    return sorted((e for e in shortest.values() if not _is(culprit, e)), key=lambda e: e.subject)


def _is(culprit: Culprit, e: Episode) -> bool:
    """Whether the cause's words have said as much of it already: where it serves would be news."""
    return e.pid is not None and e.pid == culprit.pid and e.subject == process(e.comm, e.pid)


def _is_process(e: Episode) -> bool:
    """Whether it is called by its process, or by that and where it serves; a limiter of a process is something of its
    own.
    """
    return e.pid is not None and e.subject.partition(" on ")[0].removeprefix("process ") == process(e.comm, e.pid)


def _who(e: Episode, serving: dict[object, int | None]) -> Hashable:
    if _is_process(e):
        return e.pid
    raw = e.key[-1] if e.pid is None and len(e.key) == 2 else b""  # of a broker (system, peer)
    if isinstance(e.key[0], str) and isinstance(raw, bytes) and len(raw) == 18:
        port = int.from_bytes(raw[16:], "little")
        if port in serving and _is_loopback(raw[:16]):
            return serving[port]
    return e.subject


def _is_loopback(raw: bytes) -> bool:
    address = ipaddress.IPv6Address(raw)
    return (address.ipv4_mapped or address).is_loopback
