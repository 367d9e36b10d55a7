"""A thread that owed an answer slept until another process of this host woke it, or for a time that its program asked
for, also if it then tries again to get a file lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.askers import READS as ASKERS
from agent.correlate.askers import asked_by
from agent.correlate.catalogue import Cause, symptom_of
from agent.correlate.client_wait import READS as REQUESTS
from agent.correlate.client_wait import client_wait
from agent.correlate.episode import NOT_ASKED, Culprit, Episode, Verdict, item
from agent.correlate.sleeps import READS, Sleep, held_up
from agent.correlate.spending import spending
from agent.correlate.view import View
from agent.correlate.waits import SHARE
from agent.correlate.wakers import REQUESTED
from agent.correlate.words import Words, process, render, span, value

#: Of the lost time, from which it is all of it: a call may be made again after a time-out (PostgreSQL: 1 s).
_WHOLE = 0.8
_SPENT, _READ = 0.93, 0.93  # scores if all of the time
_SEVERAL = 3  # waits, from which a slow request is no single one


def slept(episode: Episode, view: View) -> Iterator[Verdict]:
    for sleep in held_up(episode, view):
        single = episode.metric in symptom_of(episode).alone and sleep.times < _SEVERAL
        if not sleep.waiting or sleep.share < SHARE or single:
            continue
        who = process(episode.comm, episode.pid)
        words = render(
            "{who} slept in {call} {times}for {up}{longest}{until}{asked}",
            who=who,
            call=sleep.call,
            times=render("{n}, ", n=value(sleep.times, "time")) if sleep.times > 1 else "",
            up="up to " if sleep.times > 1 else "",
            longest=sleep.longest,
            until=_until(sleep),
            asked="" if sleep.by else asked_by(episode.pid, episode, view, sleep.longest_ns),
        )
        entry = item(
            "slow_syscall",
            f"asleep in {sleep.call}",
            sleep.longest_ns,
            "ns",
            column="duration_ns",
            file=sleep.lock,
            holder=process(*sleep.by) if sleep.by and sleep.lock else "",
            woken_by=process(*sleep.by) if sleep.by and not sleep.lock else "",
            share=round(sleep.share, 2),
            keys={"pid": episode.pid, "tid": sleep.tid},
        )
        culprit = Culprit(sleep.by[1], sleep.by[0]) if sleep.by else Culprit(episode.pid, episode.comm)
        yield Verdict(
            CAUSE.name,
            sleep.sure * min(1.0, sleep.share / _WHOLE),
            f"wait for {sleep.by[1]}" if sleep.by else episode.scope,
            words,
            (entry,),
            sleep.call,
            culprit,
        )


def spent(episode: Episode, view: View) -> Iterator[Verdict]:
    """A process that was not asked for answers slept for far longer than before."""
    tries = any(sleep.lock and sleep.waiting for sleep in held_up(episode, view))
    if episode.key != NOT_ASKED or episode.tids or tries:
        return
    for its in spending(episode, view):
        if its.call.encode() not in REQUESTED or its.more < SHARE:
            continue
        who = process(episode.comm, episode.pid)
        words = render(
            "{who} slept in {call} for {share} of the time (usually {usual}), up to {longest} each, as its program"
            " requested",
            who=who,
            call=its.call,
            share=value(min(1.0, its.share), "ratio"),
            usual=value(its.usual, "ratio"),
            longest=span(its.longest_ns),
        )
        entry = item(
            "syscall_latency",
            f"asleep in {its.call}",
            its.longest_ns,
            "ns",
            column="max_ns",
            share=round(its.more, 2),
            keys={"pid": episode.pid, "syscall": its.call},
        )
        culprit, score = Culprit(episode.pid, episode.comm), _SPENT * min(1.0, its.more / _WHOLE)
        yield Verdict(CAUSE.name, score, episode.scope, words, (entry,), its.call, culprit)


def read(episode: Episode, view: View) -> Iterator[Verdict]:
    """It serves one client at a time, and that one sends nothing. A single late request may be its client's own."""
    its = client_wait(episode, view)
    if its is None or its.share < SHARE or episode.metric in symptom_of(episode).alone:
        return
    words = render(
        "{who} waited in {call} for {longest} for what its client {client} sends, and served no other",
        who=process(episode.comm, episode.pid),
        call=its.call,
        longest=span(its.longest_ns),
        client=its.who,
    )
    entry = item(
        "slow_syscall",
        "time waiting for a client",
        its.longest_ns,
        "ns",
        column="duration_ns",
        share=round(its.share, 2),
        keys={"pid": episode.pid, "tid": its.tid, "peer": its.name},
    )
    score = _READ * min(1.0, its.share / _WHOLE)
    yield Verdict(CAUSE.name, score, f"wait for {its.name}", words, (entry,), its.call, its.culprit)


def late(episode: Episode, view: View) -> Iterator[Verdict]:
    yield from slept(episode, view)
    yield from spent(episode, view)
    yield from read(episode, view)


def _until(sleep: Sleep) -> Words:
    if sleep.by and sleep.lock:
        return render(", between tries to lock {file}, which {who} held", file=sleep.lock, who=process(*sleep.by))
    if not sleep.by:
        asked = sleep.call.encode() in REQUESTED
        return ", as its program requested" if asked else ", and no other process ended that"
    if sleep.processes == 1:
        return f" until {process(*sleep.by)} woke it"
    return render(" until {n} processes of {comm} woke it", n=value(sleep.processes), comm=sleep.by[0])


CAUSE = Cause(
    "process_wait",
    69,
    "a thread that owed an answer slept until another process of this host woke it (a lock, a latch, a queue between"
    " processes), for what one client sends while others wait, or for a time that its program asked for",
    {**REQUESTS, **ASKERS, **READS},
    "see what that process did meanwhile: tickscope query slow_syscall --columns"
    " comm,tid,syscall,duration_ns,waker_comm,waker_pid; for a database, its own"
    " list of locks (pg_locks, SHOW ENGINE INNODB STATUS)",
    {"service_latency": late, "decision_latency": slept},
)
