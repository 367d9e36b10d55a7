"""What is wrong just now, and with which processes: for who looks closer (agent/investigate/)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent.correlate.episode import Episode
from agent.correlate.finding import Finding


class Trouble(NamedTuple):
    """One episode that goes on. pids: (pid, start in units of 10 ms, None where it is not known), of who suffers and then of who is blamed. finding_id: empty while
    it is in no finding. episode: the same for the same episode."""

    symptom: str
    comm: str
    pids: tuple[tuple[int, int | None], ...]
    finding_id: str
    episode: tuple[object, ...]


def troubles(held: Iterable[Episode], findings: Iterable[Finding], second: int) -> Iterator[Trouble]:
    """Of episodes that were bad in one of the last two seconds before this one; those of findings first, the newest first of all."""
    for found in sorted(findings, key=lambda f: -f.start_ns):
        if not found.closed:
            blamed = found.cause.culprit.pid
            yield from (_of(e, found.finding_id, blamed) for e in found.episodes if _now(e, second))
    yield from (_of(e, "", None) for e in held if _now(e, second))


def _now(episode: Episode, second: int) -> bool:
    return episode.pid is not None and episode.pid > 0 and episode.last_bad >= second - 2


def _of(e: Episode, finding_id: str, blamed: int | None) -> Trouble:
    assert e.pid is not None
    pids: list[tuple[int, int | None]] = [(e.pid, e.start_tick)]
    pids += [(blamed, None)] if blamed is not None and blamed not in (0, e.pid) else []
    return Trouble(e.symptom, e.comm, tuple(pids), finding_id, (e.symptom, e.subject, e.start_ns))
