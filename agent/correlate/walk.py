"""From a process that is late to the processes for which it waited, and on to those for which these waited: the time
that A waits for B while B waits for C is C's (cascaded redistribution; wPerf, OSDI 2018). Pure.

Each kind of wait is one file of ``edges/``. A process along the way is examined by the rules of causes as if it had the
symptom itself; what they find about it, or beyond it, explains the first one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from agent.correlate.catalogue import EdgeKind, edges
from agent.correlate.episode import NOT_ASKED, Episode, Verdict, Waited
from agent.correlate.served import NOTED_NS, UNANSWERED, blamed
from agent.correlate.view import LEAD_NS, View
from agent.correlate.words import Words, process, render, span, text

HOPS = 16  # sessions that wait for one lock may let each other go on in turn
_EDGES, _PROCESSES = 4, 24  # followed from one process; examined in all
_NAMED = 0.5  # score from which a verdict on a process further on explains the wait for it
_PASSED = 0.3  # factor for a verdict that names a process which itself waited
_WHOLE = 0.75  # of the time, from which a wait is all of it: there may be time-outs in between
_FURTHER = 0.98  # ... and for each step
_IN_TURN, _WHOLE_OWN = 0.8, 0.9  # of the time, spent waiting for those beside it, at most; score of all of the rest
#: Causes that say no more than who was waited for.
IMPACTS = frozenset(
    (
        *("broker_slow", "peer_stopped", "syscall", "process_wait", "dns"),
        *("consumer_slow", "consumer_stopped", "prefetch_full", "server_error"),
    )
)


def hops(episode: Episode, view: View) -> list[tuple[Waited, Episode]]:
    """The processes that it waited for, most of the time first, each with an episode of its own."""
    return view.once(_hops, episode)


def _hops(episode: Episode, view: View) -> list[tuple[Waited, Episode]]:
    best: dict[int, Waited] = {}
    for kind in _kinds(episode):
        for hop in view.guard.attempt(f"wait {kind.name}", _each, kind, episode, view, otherwise=()):
            if hop.pid != episode.pid and (hop.pid not in best or best[hop.pid].share < hop.share):
                best[hop.pid] = hop
    found = sorted(best.values(), key=lambda hop: (-hop.share * hop.sure, hop.pid))[:_EDGES]
    return [(hop, _node(hop, episode, view)) for hop in found]


def _kinds(episode: Episode) -> list[EdgeKind]:
    return [kind for kind in edges() if episode.symptom in kind.symptoms]


def _each(kind: EdgeKind, episode: Episode, view: View) -> list[Waited]:
    return list(kind.waits(episode, view))


def _node(hop: Waited, episode: Episode, view: View) -> Episode:
    tick = view.started(hop.pid, episode)
    start_ns = min(episode.start_ns, hop.spans[0][0]) if hop.spans else episode.start_ns
    lasted, timed = float(episode.end_ns - start_ns), episode.unit == "ns"
    value = min(episode.value if timed else lasted, lasted, hop.longest_ns or lasted)
    return Episode(
        "service_latency",
        _late_port(hop.pid, episode, view) if hop.serves == NOT_ASKED else hop.serves,
        -1,
        process(hop.comm, hop.pid),
        f"{hop.pid}/{tick}",
        start_ns=start_ns,
        end_ns=episode.end_ns,
        metric=episode.metric if episode.symptom == "service_latency" or episode.stuck else "half_ns",
        unit="ns",
        value=value,
        bar=min(episode.bar, value * 0.5) if timed else value * 0.5,
        last_bad=episode.last_bad,
        pid=hop.pid,
        start_tick=tick,
        comm=hop.comm,
        tids=hop.tids,
        spans=hop.spans,
        idle_at=hop.idle_at,
    )


def _late_port(pid: int, episode: Episode, view: View) -> tuple[int, int]:
    """Where a process owed an answer for longest meanwhile: (network namespace, port); NOT_ASKED if it did not."""
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS)
    rows = rows[(rows["pid"] == pid) & (rows["max_ns"] > 0) & (rows["max_from_ns"] > 0)]
    begun = rows["max_from_ns"]
    waited = np.minimum(begun + rows["max_ns"], episode.end_ns) - np.maximum(begun, episode.start_ns)
    if not len(rows) or waited.max() <= 0:
        return NOT_ASKED
    row = rows[int(np.argmax(waited))]
    return int(row["netns"]), int(row["sport"])


Examine = Callable[[Episode, View], list[Verdict]]


def further(
    episode: Episode,
    view: View,
    examine: Examine,
    verdicts: list[Verdict],
    seen: dict[int, None],
    passed: tuple[Episode, ...] = (),
    beside: Mapping[int, Episode] = MappingProxyType({}),
) -> list[Verdict]:
    """The verdicts on an episode, with those on the processes that it waited for. examine: the rules' verdicts on one
    episode. seen: gets these processes. passed: those of the processes before it. beside: those that the one before it
    waited for. Processes that wait for each other in turn, as for a lock, lose only the time that each takes itself.
    """
    if len(passed) >= HOPS or not _kinds(episode) or (episode.pid is None and episode.symptom in EdgeKind.symptoms):
        return verdicts
    its = hops(episode, view)
    turns = [hop for hop, _ in its if hop.pid in beside and _waits(beside[hop.pid], episode, view)]
    found, way = _in_turn(verdicts, turns), (*passed, episode)
    for hop, node in its:
        if hop in turns or hop.pid in {one.pid for one in passed} or hop.pid in seen or len(seen) >= _PROCESSES:
            continue
        seen[hop.pid] = None
        there = further(node, view, examine, examine(node, view), seen, way, {one.pid: of for one, of in its})
        roots = [v for v in there if v.score >= _NAMED and not _points_back(v, node, way, view)]
        who = process(hop.comm, hop.pid)
        if not roots:
            found = [_unexplained(v, who, node, view) if _names(v, hop) else v for v in found]
            continue
        found = [_passed_on(v) if _names(v, hop) else v for v in found]
        found += [
            replace(
                v,
                score=v.score * min(1.0, hop.share / _WHOLE) * hop.sure**0.5 * _FURTHER,
                via=(*(process(*one) for one in hop.through), who, *v.via),
                words=_via(v, who, hop.lock),
                short="",
            )
            for v in roots
        ]
    return found


def _waits(one: Episode, other: Episode, view: View) -> bool:
    """Whether that one waited for the other one."""
    return any(hop.pid == other.pid for hop, _ in hops(one, view))


def _in_turn(verdicts: list[Verdict], turns: list[Waited]) -> list[Verdict]:
    """With what the process itself did as a share of the time in which it did not wait for those beside it."""
    waited = min(_IN_TURN, sum(hop.share for hop in turns))
    return [
        _passed_on(v)
        if any(_names(v, hop) for hop in turns)
        else replace(v, score=max(v.score, min(_WHOLE_OWN, v.score / (1 - waited))))
        for v in verdicts
    ]


def _unexplained(verdict: Verdict, who: str, node: Episode, view: View) -> Verdict:
    """With what is known of the process where the walk ends: its longest wait, of half of the time or more."""
    if verdict.cause != "broker_slow" or verdict.score <= 0 or who not in str(verdict.words):
        return verdict
    waits = view.own(view.during("slow_syscall", node), node)
    waits = waits[waits["t_ns"] - waits["duration_ns"] >= node.start_ns - LEAD_NS]  # others are for more work
    top = waits[int(np.argmax(waits["duration_ns"]))] if len(waits) else None
    if top is None or top["duration_ns"] < 0.5 * node.value:
        return replace(verdict, words=render("{words}; the reason is not known", words=verdict.words))
    words = render(
        "{words}; it slept in {call} for {took}; the reason is not known",
        words=verdict.words,
        call=text(top["syscall"]),
        took=span(float(top["duration_ns"])),
    )
    return replace(verdict, words=words)


def _via(verdict: Verdict, who: str, lock: str) -> Words:
    """Its words, with the process that waited for what it is about, unless they name that, and the lock that it held
    meanwhile.
    """
    waits = "" if who in str(verdict.words) else " waited for it"
    holds = render(" held the lock on {file}", file=lock) if lock else ""
    if not waits and not holds:
        return verdict.words
    both = ", and" if waits and holds else ""
    return render(
        "{words}; {who}{waits}{both}{holds}", words=verdict.words, who=who, waits=waits, both=both, holds=holds
    )


def _points_back(verdict: Verdict, node: Episode, way: tuple[Episode, ...], view: View) -> bool:
    """Whether it blames a process on the way, or a port of this host that one of them serves beside others."""
    its = blamed(verdict, view, node)
    ports = {str(one.key[1]) for one in way if one.symptom == "service_latency" and one.key != NOT_ASKED}
    port = verdict.scope.partition(" in ")[0].rpartition(":")[2] if verdict.cause in UNANSWERED else ""
    return bool(its & {one.pid for one in way}) or bool(its and port in ports)


def _names(verdict: Verdict, hop: Waited) -> bool:
    """Whether it only names the process that was waited for, or one between."""
    if verdict.cause not in IMPACTS:
        return False
    pids = {hop.pid, *(pid for _, pid in hop.through)}
    return verdict.culprit.pid in pids or bool(hop.where and verdict.scope == hop.where)


def _passed_on(verdict: Verdict) -> Verdict:
    return replace(verdict, score=verdict.score * _PASSED)
