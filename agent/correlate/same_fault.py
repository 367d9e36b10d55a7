"""Whether an episode belongs to a finding although its own verdict has another cause or scope: one fault has symptoms
at many places. Pure.
- A server that was stopped or terminated refuses connects, does not answer, and so on: a verdict that blames the server
  for that, and the termination itself, are one fault.
- A service whose limiter refuses more answers with HTTP 429: what makes the limiter refuse explains both.
- Work that arrives at once after a gap is a backlog (agent/correlate/backlog.py): it belongs to the fault that caused
  the gap.
- A client of a stopped process that is late without another explanation is late because of that, until more is known
  (``Finding.provisional``). So is a client of such a client.
Two causes that share no process stay two findings, however near they are in time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from agent.common.fairness import UpperBound
from agent.correlate.answered import chain, is_about_answers
from agent.correlate.backlog import RATES, made_up
from agent.correlate.episode import Episode, Verdict
from agent.correlate.rows import groups, known
from agent.correlate.served import UNANSWERED, blamed
from agent.correlate.thresholds import SECOND
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.correlate.finding import Finding
    from agent.correlate.view import View

#: Terminations of a process, and their effects on others.
_TERMINATION_CAUSES = frozenset(("process_stopped", "process_killed", "process_restarted"))
_SLACK_NS = SECOND
_AFTER_NS = 2 * SECOND  # the impact lasts that much longer if clients retry
_BEGUN_NS = 50_000_000  # times of answers are in ticks
_BEFORE_NS = 60 * SECOND
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_PEERS = 256  # the last peers that processes talked to
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "peers of late processes that are compared with a fault",
        _PEERS,
        "a process that waits for another one may have a finding of its own",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
)


def same(found: Finding, verdict: Verdict, episode: Episode, view: View) -> bool:
    """Whether an episode with this best verdict belongs to the finding. verdict: score 0 if nothing explains it."""
    if found.steps is not None or found.cause.score <= 0 or found.closed or found.merged_into:
        return False
    if not _meets(found, episode, _AFTER_NS):
        return False
    if any(_refused(one, episode, view) or _refused(episode, one, view) for one in found.explained()):
        return True
    if verdict.score <= 0:
        return _is_waiting(found, episode, view) or _piled_up(found, episode, view)
    mine, its = blamed(found.cause, view, found.main), blamed(verdict, view, episode)
    names = {found.cause.cause, verdict.cause}
    if names & UNANSWERED and names <= _TERMINATION_CAUSES | UNANSWERED and mine & its:
        return True
    if verdict.cause in UNANSWERED and any(_overlaps_late(e, episode) and e.pid in its for e in found.explained()):
        return True
    if found.cause.cause in UNANSWERED and _is_late(episode) and episode.pid in mine and _meets(found, episode, 0):
        return True
    if names & UNANSWERED and names & _TERMINATION_CAUSES and abs(found.start_ns - episode.start_ns) <= _SLACK_NS:
        ended, impacted = (mine, its) if verdict.cause in UNANSWERED else (its, mine)
        return bool(set(_asked(impacted, episode, view)) & ended)
    return False


def _refused(limiter: Episode, server: Episode, view: View) -> bool:
    """Whether one is about a limiter that refuses, and the other one about the answers of its process that say so."""
    if limiter.symptom != "refusals" or limiter.pid is None or not is_about_answers(server):
        return False
    return any(hop.limited and limiter.pid in hop.pids for hop in chain(server, view))


def _is_waiting(found: Finding, episode: Episode, view: View) -> bool:
    """Whether it is about a client of a stopped process, or of one that is late because of that; it must have begun
    meanwhile.
    """
    if found.cause.cause not in _TERMINATION_CAUSES | UNANSWERED or not _is_late(episode):
        return False
    if not found.start_ns - _BEGUN_NS <= episode.start_ns <= found.end_ns + _SLACK_NS:
        return False
    pids = {*blamed(found.cause, view, found.main), *(e.pid for e in found.explained() if _is_late(e))}
    return any(pid in pids for pid in _asked({episode.pid}, episode, view))


def _piled_up(found: Finding, episode: Episode, view: View) -> bool:
    """Whether it is about a backlog after the stop of that process, at the process itself, a client of it, or a server
    that it calls.
    """
    if episode.pid is None or not any(made_up(episode, metric) for metric in RATES):
        return False
    pids = {*blamed(found.cause, view, found.main), *(e.pid for e in found.explained() if e.unit == "ns")}
    return (
        episode.pid in pids
        or episode.pid in _asked(pids, episode, view)
        or bool({*_asked({episode.pid}, episode, view)} & pids)
    )


def _asked(by: Collection[int | None], episode: Episode, view: View) -> Iterator[int]:
    """The current and earlier servers of the connections that processes had in the minute before."""
    talks = view.rings["tcp_rtt"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND)
    talks = talks[(talks["role"] != _SERVER) & np.isin(talks["pid"], [pid for pid in by if pid is not None])]
    talks = talks[::-1]
    last = sorted(groups([talks["peer"], talks["netns"]])[0]) if len(talks) else []
    view.with_more_peers.update(talks["pid"][last[_PEERS:]].tolist())
    for i in last[:_PEERS]:
        row = talks[i]
        netns = int(row["netns"]) if known(row["netns"]) else None
        raw = row["peer"].tobytes()
        own = raw[:16] == row["saddr"].tobytes()
        yield from (pid for _, pid in view.servers.of_late(raw, netns, own))


def _is_late(episode: Episode) -> bool:
    return episode.unit == "ns" and episode.pid is not None


def _overlaps_late(one: Episode, other: Episode) -> bool:
    """Whether that one was late when the other was."""
    return _is_late(one) and one.start_ns <= other.end_ns + _SLACK_NS and one.end_ns >= other.start_ns - _SLACK_NS


def _meets(found: Finding, episode: Episode, after_ns: int) -> bool:
    return (
        episode.start_ns <= found.end_ns + _SLACK_NS + after_ns
        and episode.end_ns >= found.start_ns - _SLACK_NS - after_ns
    )
