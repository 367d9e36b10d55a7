"""Limiters and services without requests at an hour of the day at which they always had some."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.hours import READS, HourWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, opening, render, value, when


def judge(watch: HourWatch, second: Second) -> None:
    now = second.at + 1
    for episode in watch.active.values():
        if (last := int(watch.last[episode.slot])) * SECOND > episode.start_ns:
            if episode.last_bad == second.at - 1 and last == second.at:
                episode.end_ns = last * SECOND
        elif second.at - watch.reported[episode.slot] < watch.config.adopt_s:
            watch.extend(episode, second.at, float(now * SECOND - episode.start_ns))
    for slot, begun, pause, n in watch.overdue(second.slots, second.at):
        if (SYMPTOM.name, slot) in watch.active:
            continue
        watch.reported[slot] = second.at
        its = {"start_ns": begun * SECOND, "base": float(pause * SECOND), "bar": float(3 * pause * SECOND)}
        episode = watch.begin(SYMPTOM.name, slot, second.at, float((now - begun) * SECOND), 1, **its)
        episode.facts["n_base"] = n


def clause(episode: Episode) -> Words:
    return render(
        "{who} {did} for {took} (usually {n} in this hour of the day, with pauses of at most {base}) {when}",
        who=opening(episode.subject),
        did="made no decision" if episode.metric == "silent" else "got no request",
        took=measured(episode.value, episode.unit),
        n=value(episode.facts.get("n_base"), "decision" if episode.metric == "silent" else "request"),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "quiet_hour",
    88,
    "a limiter or service gets no requests for far longer than ever at this hour of the day",
    "a limiter of a program, or a port",
    "ns",
    "limiter_decision",
    READS,
    clause,
    "check whether its clients still run and reach it: tickscope query tcp_connect --group-by peer; tickscope"
    " query process_event",
    HourWatch,
    judge,
    shared=True,
    tables={"unasked": "service_latency"},
    explained_by={"process_stopped": "silence", "process_killed": "silence", "process_restarted": "silence"},
)
