"""The processes that an episode depended on, and their stops and terminations meanwhile: its own, its peers, a broker
and its consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from agent.correlate import terminations
from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import chain as answers
from agent.correlate.consumption import consumption, polls_of
from agent.correlate.episode import UNTAKEN, Episode, Verdict
from agent.correlate.joint_terminations import joint_termination
from agent.correlate.pairs import reads
from agent.correlate.polled import polled
from agent.correlate.queues import DELIVERED
from agent.correlate.rows import groups, known
from agent.correlate.terminations import TRACED, Termination
from agent.correlate.terminations_over import LESS, after, back, over
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.waits import NETWORK, PEERS, SHARE, on_peers
from agent.tables import TABLES

READS = {**ANSWERS, **PEERS, **terminations.READS, "tcp_rtt": (*NETWORK["tcp_rtt"], "cgroup_id")}
_KINDS = TABLES["process_event"].by_name["kind"].names
_WHOLE = [_KINDS.index("frozen"), _KINDS.index("thawed")]
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_BEFORE_NS = 120 * SECOND  # how far back a stop may begin that still lasts
_AFTER_NS = 30 * SECOND
_LEAD_NS = 2 * SECOND  # how long after a termination its impact may last
_EXIT_NS = 200_000_000  # a process exits after its connections are closed
_LATE_NS = 20 * SECOND  # a message must be old before it is late
_AGED_NS = 5 * SECOND  # active consumers take waiting messages within this time
_UNREAD = ("age_s", "lag")  # of a queue: messages not yet delivered
_SURE = 0.99


@dataclass(frozen=True)
class ScoredEvent:
    """A stop or termination of a process, and how well it explains an episode."""

    termination: Termination
    score: float


def own(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the episode's own process."""
    if episode.pid is None:
        return []
    needed_ns = episode.value if episode.unit == "ns" else SECOND
    return _named(_during(episode, view, {episode.pid}, needed_ns, _SURE), {episode.pid: episode.comm})


def stopped(episode: Episode, view: View) -> list[ScoredEvent]:
    """Stops of the episode's own process, which its termination cannot have delayed before."""
    return [scored for scored in own(episode, view) if scored.termination.stop]


def silent(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the process that decides nothing. After an orderly end it is expected to be silent, unless it was to be
    restarted.
    """
    another = bool(episode.facts.get("another"))
    scored_events = [
        ScoredEvent(replace(scored.termination, replaced=another or scored.termination.replaced), scored.score)
        for scored in own(episode, view)
    ]
    return [scored for scored in scored_events if not scored.termination.orderly or scored.termination.replaced]


def itself(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the subject of the episode. Its key: process, start, cgroup."""
    pid, tick, cgroup = (int(str(part)) for part in episode.key)
    events = _events(episode, view, _LEAD_NS)
    found = terminations.terminations(events, {pid}, {cgroup})
    found = [replace(f, tick=tick, comm=episode.comm) if f.kind == "frozen" else f for f in found]
    found = [f for f in found if f.stop == (episode.symptom == "process_stopped")]
    found = [f for f in found if f.from_ns <= episode.end_ns and f.to_ns >= episode.start_ns][-1:]
    return [ScoredEvent(joint_termination(f, events), _SURE) for f in found]


def peers(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the peers that it waited for."""
    found = []
    for wait in on_peers(episode, view):
        if wait.share < SHARE and not len(wait.failed):
            continue
        share = max(wait.share, 1.0 if len(wait.failed) else 0.0)
        served = _servers(wait.raw, episode, view)
        names = {pid: comm for comm, pid in served}
        scored_events = _named(_serving(episode, view, [*names], wait.longest, _SURE * share * wait.sure), names)
        found += [
            replace(b, score=b.score * LESS) if over(b.termination, wait.raw, served, episode, view) else b
            for b in scored_events
        ]
    return found


def _named(scored_events: list[ScoredEvent], names: dict[int, str]) -> list[ScoredEvent]:
    """Events of a whole cgroup have no process name."""
    return [
        replace(b, termination=replace(b.termination, comm=b.termination.comm or names.get(b.termination.pid, "")))
        for b in scored_events
    ]


def answering(episode: Episode, view: View) -> list[ScoredEvent]:
    """For a service; after an orderly end it had answered its requests."""
    return [
        *(scored for scored in own(episode, view) if scored.termination.stop or not scored.termination.orderly),
        *peers(episode, view),
    ]


def either(episode: Episode, view: View) -> list[ScoredEvent]:
    return [*own(episode, view), *peers(episode, view)]


def answered(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the servers that answered with errors, or that these can no longer reach: the last ones first."""
    found: list[ScoredEvent] = []
    for n, one in enumerate(reversed(answers(episode, view))):
        if one.limited:
            continue  # it was there, and refused
        found += [
            replace(scored, score=scored.score * 0.9**n)
            for scored in _serving(episode, view, [*one.pids], SECOND, _SURE)
        ]
    return found


def _serving(episode: Episode, view: View, pids: list[int], needed_ns: float, sure: float) -> list[ScoredEvent]:
    """As ``_during``, for the processes of a server; without orderly terminations after which the others go on."""
    return [
        scored
        for scored in _during(episode, view, pids, needed_ns, sure)
        if scored.termination.stop
        or not scored.termination.orderly
        or not _go_on(scored.termination, pids, episode, view)
    ]


def _go_on(termination: Termination, pids: Collection[int], episode: Episode, view: View) -> bool:
    """Whether others served there before it ended, and after it. If each client has a process of its own, or workers
    are recycled, a termination is normal.
    """
    talks = view.rings["tcp_rtt"].between(termination.from_ns, max(termination.from_ns, episode.end_ns) + SECOND)
    others = np.isin(talks["pid"], [pid for pid in pids if pid != termination.pid]) & (talks["role"] == _SERVER)
    return bool((talks["proc_start_ns"][others] < termination.from_ns).any())


def reader(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the process that does not read what was written."""
    who = reads(episode, view)
    return _during(episode, view, {who[0]}, episode.value, _SURE) if who else []


def tried(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the server that it connects to again and again."""
    raw = episode.key[1]
    assert isinstance(raw, bytes)
    return _serving(episode, view, [pid for _, pid in _servers(raw, episode, view)], SECOND, _SURE)


def connected(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the server that it connects to: only stops, since connects to a terminated one are refused at once,
    not slow.
    """
    return [scored for scored in tried(episode, view) if scored.termination.stop]


def broker(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the server that was polled."""
    raw = episode.key[1]
    assert isinstance(raw, bytes)
    if polled(episode, view).blind:
        return []
    scored_events = _serving(episode, view, [pid for _, pid in _servers(raw, episode, view)], episode.value, _SURE)
    # A server with a process for each client ends the poller's own when that reconnects.
    over_ns = episode.end_ns + _EXIT_NS
    return [one for one in scored_events if not (one.termination.orderly and one.termination.from_ns > over_ns)]


def consumers(episode: Episode, view: View) -> list[ScoredEvent]:
    """For a queue's broker, and for its clients."""
    if episode.metric == UNTAKEN:
        pids = {client.pid for client in consumption(episode, view).clients}
        return [one for one in _during(episode, view, pids, SECOND, 0.985 * _SURE) if one.termination.older]
    at = episode.key[-1]
    assert isinstance(at, bytes)
    talks = view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
    talks = talks[talks["role"] != _SERVER]
    if not at or not len(talks):
        return []
    ours = [raw for i in groups([talks["peer"]])[0] if (raw := talks["peer"][i]).tobytes() == at]
    pids = {int(pid) for raw in ours for pid in np.unique(talks["pid"][talks["peer"] == raw])}
    pids |= {pid for raw in ours for _, pid in _servers(raw.tobytes(), episode, view)}
    scored_events = _during(episode, view, pids, SECOND, 0.985 * _SURE, _LATE_NS)
    # Clients come and go, and not all of them consume: an orderly end explains nothing.
    scored_events = [scored for scored in scored_events if not scored.termination.orderly]
    if episode.metric in DELIVERED:  # who had ended before the message was delivered does not hold it
        since_ns = min(episode.start_ns, episode.end_ns - int(episode.value * SECOND)) - SECOND
        scored_events = [one for one in scored_events if one.termination.stop or one.termination.from_ns >= since_ns]
    if episode.metric in _UNREAD:
        grown, talks = consumption(episode, view).grown, talks[talks["t_ns"] <= episode.start_ns + SECOND]
        scored_events = [
            scored
            for scored in scored_events
            if scored.termination.stop
            or not (grown or back(scored.termination, talks) or _read_on(scored.termination, episode, view))
        ]
    since_ns = episode.start_ns - _AGED_NS
    return [
        b
        for b in scored_events
        if b.termination.from_ns <= episode.start_ns + 2 * SECOND
        and (not b.termination.stop or b.termination.to_ns >= since_ns)
    ]


def _read_on(termination: Termination, episode: Episode, view: View) -> bool:
    """Whether a partition, which has one consumer at a time, was read after a termination and some time before the
    symptom, by a group that has its usual number of members.
    """
    group = consumption(episode, view)
    if not episode.keys["partition"] or group.count is None or group.before is None or group.count < group.before:
        return False
    polls = polls_of(episode, view, _LATE_NS)
    between = (polls["t_ns"] > termination.from_ns) & (polls["t_ns"] <= episode.start_ns - _AGED_NS)
    rates = polls["out_per_s"][between]
    # The first of these rates is of an interval that began before the termination.
    return bool((rates[~np.isnan(rates)][1:] > 0).any())


def had_first(episode: Episode, view: View) -> list[ScoredEvent]:
    """For the consumer that had a message first: it ended or was stopped before it acknowledged it."""
    pid = int(episode.facts.get("first_pid", 0))
    if not pid:
        return []
    lead_ns = _LEAD_NS + int(min(episode.facts.get("repeated_s", 0.0) * SECOND, _BEFORE_NS))
    return [
        replace(one, score=one.score * LESS) if one.termination.orderly else one
        for one in _during(episode, view, {pid}, SECOND, _SURE, lead_ns)
    ]


def _servers(raw: bytes, episode: Episode, view: View) -> list[tuple[str, int]]:
    """The current and earlier servers of a peer for the episode's process; the latest first."""
    netns = view.netns(episode, raw)
    return view.servers.of_late(raw, netns, view.has_address(raw, netns, episode))


def _events(episode: Episode, view: View, lead_ns: int) -> np.ndarray:
    """Includes events after the episode, to see terminations in a row."""
    return view.rings["process_event"].between(episode.start_ns - max(_BEFORE_NS, lead_ns), episode.end_ns + _AFTER_NS)


def _during(
    episode: Episode, view: View, pids: Collection[int], needed_ns: float, sure: float, lead_ns: int = _LEAD_NS
) -> list[ScoredEvent]:
    """Stops and terminations of processes during the episode. pids: a list begins with the current server. needed_ns:
    the length of a stop that explains it in full.
    """
    events = _events(episode, view, lead_ns)
    if not pids or not len(events):
        return []
    scored_events = []
    for termination in terminations.terminations(events, pids, _cgroups(events, view, episode, pids)):
        from_ns, to_ns = (
            max(termination.from_ns, episode.start_ns - lead_ns),
            min(termination.to_ns, episode.end_ns + SECOND),
        )
        if to_ns < from_ns or (termination.kind == TRACED and termination.from_ns < episode.start_ns - SECOND):
            continue
        dose = (
            min(1.0, (to_ns - from_ns) / max(needed_ns * 0.8, 1.0)) if termination.stop else after(termination, episode)
        )
        replaced = not termination.stop and isinstance(pids, list) and pids[0] != termination.pid
        scored_events.append(
            ScoredEvent(
                joint_termination(replace(termination, replaced=True) if replaced else termination, events), sure * dose
            )
        )
    return scored_events


def _cgroups(events: np.ndarray, view: View, episode: Episode, pids: Collection[int]) -> set[int]:
    """The cgroups of processes, if a cgroup was frozen."""
    if not np.isin(events["kind"], _WHOLE).any():
        return set()
    talks = view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
    found = talks["cgroup_id"][np.isin(talks["pid"], list(pids))]
    return {int(one) for one in np.unique(found[known(found)])}


Rule = Callable[[Episode, View], list[ScoredEvent]]
#: By symptom, the rule that gives the processes with a stop or termination that may explain it.
IMPACTED: dict[str, Rule] = {
    "decision_latency": either,
    "refusals": peers,
    "service_errors": answered,
    "queue_lag": consumers,
    "rebalancing": consumers,
    "redelivery": consumers,
    "duplicates": had_first,
    "accept_overflow": own,
    "service_latency": answering,
    "blocked_time": stopped,
    "broker_down": broker,
    "broker_stall": broker,
    "process_stopped": itself,
    "process_gone": itself,
    "silence": silent,
    "deadline_exceeded": peers,
    "retry_storm": tried,
    "connect_latency": connected,
    "window_shut": reader,
    "lookup_latency": stopped,
}


def explains(
    cause: str, holds: Callable[[Termination], float]
) -> dict[str, Callable[[Episode, View], Iterator[Verdict]]]:
    """A cause's rules. holds: how well the cause describes a termination; 0: not at all."""

    def of(rule: Rule) -> Callable[[Episode, View], Iterator[Verdict]]:
        def verdicts(episode: Episode, view: View) -> Iterator[Verdict]:
            scored_events = [
                (scored.score * holds(scored.termination), scored.termination) for scored in view.once(rule, episode)
            ]
            score, termination = min(
                scored_events, key=lambda scored: (-scored[0], -scored[1].from_ns), default=(0.0, None)
            )
            if termination is None or score <= 0:
                return
            until_ns = max(episode.end_ns, termination.from_ns)
            own = rule is itself and termination.pid == episode.pid
            words = termination.restarted() if cause == "process_restarted" else termination.words(until_ns)
            yield Verdict(
                cause,
                score,
                termination.scope,
                words,
                termination.evidence(until_ns),
                termination.detail,
                termination.culprit,
                termination.blamed,
                short=termination.how if own and cause != "process_restarted" else "",
            )

        return verdicts

    return {symptom: of(rule) for symptom, rule in IMPACTED.items()}
