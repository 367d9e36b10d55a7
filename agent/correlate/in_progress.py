"""What is wrong just now, and with which processes: for who looks closer (agent/investigate/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from agent.correlate.episode import Episode
from agent.correlate.finding import Finding


class ActiveEpisode(NamedTuple):
    """One episode that goes on. pids: (pid, start in units of 10 ms, None where it is not known), of who suffers, or
    serves the peer that it is about, and then of who is blamed. finding_id: empty while it is in no finding. tid: the
    thread of the first process that owes an answer, 0 where none is known. episode: the same for the same episode.
    """

    symptom: str
    comm: str
    pids: tuple[tuple[int, int | None], ...]
    finding_id: str
    episode: tuple[object, ...]
    tid: int = 0


#: Who of this host serves the peer that an episode is about: (comm, pid).
Serving = Callable[[Episode], "tuple[str, int] | None"]


def active_episodes(
    held: Iterable[Episode], findings: Iterable[Finding], second: int, serving: Serving
) -> Iterator[ActiveEpisode]:
    """Of episodes that were bad in one of the last two seconds before this one; those of findings first, the newest
    first of all.
    """
    for found in sorted(findings, key=lambda f: -f.start_ns):
        if not found.closed:
            blamed = found.cause.culprit.pid
            yield from _of(found.episodes, found.finding_id, blamed, second, serving)
    yield from _of(held, "", None, second, serving)


def _of(
    episodes: Iterable[Episode], finding_id: str, blamed: int | None, second: int, serving: Serving
) -> Iterator[ActiveEpisode]:
    for e in episodes:
        if e.last_bad < second - 2:
            continue
        comm, pids = e.comm, list[tuple[int, "int | None"]]()
        if e.pid is not None and e.pid > 0:
            pids.append((e.pid, e.start_tick))
        elif (server := serving(e)) is not None:
            comm = server[0]
            pids.append((server[1], None))
        if blamed is not None and blamed not in (0, *(pid for pid, _ in pids)):
            pids.append((blamed, None))
        if pids:
            yield ActiveEpisode(
                e.symptom, comm, tuple(pids), finding_id, (e.symptom, e.subject, e.start_ns), int(e.facts.get("tid", 0))
            )
