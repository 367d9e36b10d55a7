"""The thread that had read a request slept instead of answering it: for a lock or another thread of its program, for a
child, or in nanosleep.

This shows where the thread was, not why, so any other explanation takes precedence. It is based on an on-demand profile
only: the call that the thread was in when the profile began, its first wake-up, and what ran there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import Cause, symptom_of
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.profiles import READS, profiled
from agent.correlate.rows import known
from agent.correlate.served import NOTED_NS
from agent.correlate.served import READS as SERVED
from agent.correlate.view import View
from agent.correlate.words import Words, process, render, span, text, value

#: What each call waits for.
_WAITS = {
    "futex": "waiting for a lock or another thread of its program",
    "clock_nanosleep": "as its program requested",
    "nanosleep": "as its program requested",
    "wait4": "waiting for a child process",
    "waitid": "waiting for a child process",
    "semop": "waiting for a semaphore",
    "semtimedop": "waiting for a semaphore",
    "rt_sigtimedwait": "waiting for a signal",
    "rt_sigsuspend": "waiting for a signal",
    "pause": "waiting for a signal",
}
#: Calls that no thread uses to wait for more work.
_REQUESTED = frozenset(("clock_nanosleep", "nanosleep"))
#: ... and those that programs with several processes use to wait for each other, among much else.
_LATCHES = frozenset(("epoll_wait", "epoll_pwait", "poll", "ppoll", "select", "pselect6"))
#: Of the time that the profile and the wait have in common; and the shortest sleep that counts, if the answer came at
#: the wake-up, or else.
_MOST, _LEAST_NS, _LONGER_NS = 0.7, 50_000_000, 400_000_000
_AT_ONCE_NS = 50_000_000
#: Sleeps that are as long as an answer takes, relative to it; how far off a percentile may be, which is the middle of a
#: histogram's bucket from one power of two to the next; and for how many of the answers there is one.
_AS_LONG, _BUCKET, _EACH = (0.8, 1.02), 2**0.5, 0.5
#: A thread that many requests need may have slept for another reason.
_SURE = 0.45


def pending_thread(episode: Episode, view: View) -> Iterator[Verdict]:
    tid = episode.facts.get("tid")
    rows = view.own(profiled(episode, view, "off_cpu"), episode)
    rows = rows[rows["tid"] == tid] if tid else rows[:0]
    if not len(rows) or episode.metric in symptom_of(episode).alone:
        return
    rows = rows[rows["t_ns"] == rows["t_ns"][0]]  # of one profile
    began_ns = int((rows["t_ns"] - rows["interval_ns"])[0])
    common_ns = min(episode.end_ns, int(rows["t_ns"][0])) - max(episode.start_ns, began_ns)
    rows = rows[rows["sum_ns"] <= common_ns + _AT_ONCE_NS]  # it has waited for something else since
    if not len(rows):
        return
    row = rows[int(np.argmax(rows["sum_ns"]))]
    call, slept_ns = text(row["syscall"]), int(row["sum_ns"])
    sibling = _sibling(row, episode)
    what = _WAITS.get(call, "waiting for another process of its program" if sibling and call in _LATCHES else "")
    then = bool(known(row["waker_tid"]) or text(row["waker_comm"])) and abs(common_ns - slept_ns) <= _AT_ONCE_NS
    if not what or slept_ns < max(_LEAST_NS if then else _LONGER_NS, _MOST * common_ns):
        return
    pending = _pending(int(row["tid"]), episode, view)
    if call in _REQUESTED:
        if not len(pending):
            return
    elif _longest(pending, began_ns, began_ns + slept_ns) < _MOST * slept_ns - _AT_ONCE_NS:
        return
    words = render(
        "its thread {tid}, which had read the request, slept in {call} for {last}{slept} or more, {what}{woken}",
        tid=str(int(row["tid"])),
        last="the last " if then else "",
        call=call,
        slept=span(slept_ns),
        what=what,
        woken=_woken(row, episode, sibling),
    )
    entry = item(
        "off_cpu",
        f"asleep in {call}",
        float(slept_ns),
        "ns",
        column="sum_ns",
        where=text(row["kernel_stack"]),
        keys={"pid": episode.pid, "tid": int(row["tid"])},
    )
    culprit = Culprit(int(row["waker_pid"]), text(row["waker_comm"])) if sibling else Culprit(episode.pid, episode.comm)
    yield Verdict(CAUSE.name, _SURE, episode.scope, words, (entry,), call, culprit)


def each_answer(episode: Episode, view: View) -> Iterator[Verdict]:
    """Threads called nanosleep about as often as there were answers, for about as long as an answer took. A request
    that is answered within a second has no thread known to own it when a profile begins.
    """
    rows = view.own(profiled(episode, view, "off_cpu"), episode)
    rows = rows[~known(rows["tid"]) & np.isin(rows["syscall"], [call.encode() for call in _REQUESTED])]
    off = _BUCKET if episode.metric in ("med_ns", "high_ns") else 1.0
    least, most = episode.value * _AS_LONG[0] / off, episode.value * _AS_LONG[1] * off
    rows = rows[(rows["max_ns"] >= max(least, _LEAST_NS)) & (rows["max_ns"] <= most)]
    if not len(rows) or episode.metric in symptom_of(episode).alone:
        return
    rows = rows[rows["t_ns"] == rows["t_ns"][0]]  # of one profile
    times = int(rows["count"].sum())
    if times < max(2, _EACH * _answers(rows[0], episode, view)):
        return
    row = rows[int(np.argmax(rows["max_ns"]))]
    call = text(row["syscall"])
    words = render(
        "its threads slept in {call} {times} for up to {span} each, as its program requested",
        call=call,
        times=value(times, "time"),
        span=span(int(row["max_ns"])),
    )
    entry = item(
        "off_cpu",
        f"asleep in {call}",
        float(row["max_ns"]),
        "ns",
        column="max_ns",
        where=text(row["kernel_stack"]),
        keys={"pid": episode.pid, "syscall": call},
        times=times,
    )
    yield Verdict(CAUSE.name, _SURE, episode.scope, words, (entry,), call, Culprit(episode.pid, episode.comm))


def _answers(profile: np.void, episode: Episode, view: View) -> float:
    """Number of answers during a profile; those that waited for it to recover come together, after it."""
    rows = view.rings["service_latency"].between(int(profile["t_ns"] - profile["interval_ns"]), int(profile["t_ns"]))
    rows = view.own(rows, episode)
    rows = rows[(rows["sport"] == episode.key[1]) & (rows["netns"] == episode.key[0])]
    return float(rows["requests"].clip(0).sum()) if len(rows) else np.inf


def slept(episode: Episode, view: View) -> Iterator[Verdict]:
    verdicts = [*pending_thread(episode, view)]
    yield from verdicts or each_answer(episode, view)


def _pending(tid: int, episode: Episode, view: View) -> np.ndarray:
    """Late requests that it had read."""
    rows = view.own(view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS), episode)
    return np.asarray(rows[(rows["tid"] == tid) & (rows["max_ns"] > episode.bar)])


def _longest(pending: np.ndarray, from_ns: int, to_ns: int) -> int:
    """The longest part of this interval in which one request was unanswered. After an answer a thread sleeps until
    there is more work.
    """
    begun = pending["max_from_ns"]
    return int((np.minimum(begun + pending["max_ns"], to_ns) - np.maximum(begun, from_ns)).max(initial=0))


def _sibling(row: np.void, episode: Episode) -> bool:
    """Whether another process of the same program woke it."""
    return bool(known(row["waker_pid"])) and row["waker_pid"] != episode.pid and text(row["waker_comm"]) == episode.comm


def _woken(row: np.void, episode: Episode, sibling: bool) -> Words:
    if sibling:
        return render("; {who} woke it", who=process(text(row["waker_comm"]), int(row["waker_pid"])))
    if row["waker_pid"] == episode.pid and text(row["syscall"]) == "futex":
        return render("; its thread {tid} woke it", tid=str(int(row["waker_tid"])))
    return ""


CAUSE = Cause(
    "asleep",
    900,
    "the thread that read a request slept before it answered: it waited for a lock, another"
    " thread or a child, or called sleep",
    {"off_cpu": READS["off_cpu"], **SERVED},
    "see where in the program: tickscope query off_cpu --columns comm,tid,syscall,max_ns,user_stack,waker_tid; a dump"
    " of its threads (py-spy dump, jstack, gdb); for a database, its own list of locks",
    {"service_latency": slept},
    locates_only=True,
)
