"""What is wrong now, and with which processes: for on-demand profiles (agent/investigate/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from agent.correlate.episode import Episode
from agent.correlate.finding import Finding


class ActiveEpisode(NamedTuple):
    """One active episode. pids: (pid, start in units of 10 ms, or None if unknown) of the impacted process or the
    server of the impacted peer, then of the culprit and of those that the first one waited for. finding_id: empty
    without a finding. tid: the thread of the first process with an unanswered request, 0 if unknown. episode: a key,
    the same for the same episode.
    """

    symptom: str
    comm: str
    pids: tuple[tuple[int, int | None], ...]
    finding_id: str
    episode: tuple[object, ...]
    tid: int = 0


#: The local server of an episode's peer: (comm, pid).
Serving = Callable[[Episode], "tuple[str, int] | None"]


def active_episodes(
    held: Iterable[Episode], findings: Iterable[Finding], second: int, serving: Serving
) -> Iterator[ActiveEpisode]:
    """Episodes that were bad in this second or the last two; those of findings first, the newest finding first."""
    for found in sorted(findings, key=lambda f: -f.start_ns):
        if not found.closed:
            blamed = found.cause.culprit.pid
            yield from _of(found.episodes, found.finding_id, blamed, second, serving)
    yield from _of(held, "", None, second, serving)


def _of(
    episodes: Iterable[Episode], finding_id: str, blamed: int | None, second: int, serving: Serving
) -> Iterator[ActiveEpisode]:
    for episode in episodes:
        if episode.last_bad < second - 2:
            continue
        comm, pids = episode.comm, list[tuple[int, "int | None"]]()
        if episode.pid is not None and episode.pid > 0:
            pids.append((episode.pid, episode.start_tick))
        elif (server := serving(episode)) is not None:
            comm = server[0]
            pids.append((server[1], None))
        for pid in (blamed, *(episode.ranked.waited_for if episode.ranked else ())):
            if pid is not None and pid not in (0, *(known for known, _ in pids)):
                pids.append((pid, None))
        if pids:
            yield ActiveEpisode(
                episode.symptom,
                comm,
                tuple(pids),
                finding_id,
                (episode.symptom, episode.subject, episode.start_ns),
                int(episode.facts.get("tid", 0)),
            )
