"""A process ran on a CPU all the time and answered no request meanwhile. It waited neither in a call nor for a CPU.

Examples: a computation that blocks an event loop, an interpreter lock, garbage collection, a lock with a computing
holder. Higher load is no example: each request must take more CPU time than usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import chain
from agent.correlate.askers import READS as ASKERS
from agent.correlate.askers import asked_by
from agent.correlate.catalogue import Cause
from agent.correlate.computing import READS, Ran, own, ran
from agent.correlate.cpu_starvation import READS as STARVED
from agent.correlate.cpu_starvation import elsewhere
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.polled import READS as POLLS
from agent.correlate.polled import polled
from agent.correlate.profiles import READS as PROFILES
from agent.correlate.profiles import ran_in
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, on_peers
from agent.correlate.words import process, render, span

#: Scores: for the slow process itself, and for a peer that it waited for; and the factor if it ran mostly in the
#: kernel, which calls, page faults or reclaim explain better.
_OWN, _PEER, _IN_KERNEL = 0.94, 0.95, 0.8
_SHORT = 0.8  # ... and the factor if others ran for longer
_LOADED = 0.6  # from this share of its CPU time on, more requests explain it


def _verdict(who: tuple[str, int], its: Ran, score: float, episode: Episode, view: View) -> Verdict:
    seen = ran_in(who[1], episode, view)
    usual_ns = None if its.usual is None else its.usual * its.needed_ns
    words = render(
        "{who} was busy: it ran on a CPU for {ran} of {needed}{threads}{kernel}{usual}{short}{where}{asked}",
        who=process(*who),
        ran=span(its.ran_ns),
        needed=span(its.needed_ns),
        threads=", several threads at once" if its.ran_ns > its.needed_ns else "",
        kernel=", most of it in the kernel" if its.in_kernel else "",
        usual="" if usual_ns is None else render(" (usually {usual})", usual=span(usual_ns)),
        short=(
            render("; it waited {waited} for a CPU", waited=span(its.waited_ns))
            if its.waited_ns > 0.2 * its.needed_ns
            else ""
        ),
        where=(
            render("; its thread {tid} was in {function}", tid=str(seen.tid), function=seen.where[0])
            if seen and seen.where
            else ""
        ),
        asked=asked_by(who[1], episode, view, its.needed_ns),
    )
    watched = usual_ns is not None
    entry = item(
        "cpu_use" if watched else "slow_syscall",
        "CPU time",
        its.ran_ns,
        "ns",
        column="system_ns" if its.in_kernel else "user_ns" if watched else "waker_cpu_ns",
        baseline=usual_ns,
        share=round(its.share, 2),
        keys={"pid" if watched else "waker_pid": who[1]},
    )
    more = (
        (
            item(
                "on_cpu",
                "CPU time of its busiest thread",
                seen.ran_ns,
                "ns",
                column="sum_ns",
                where=" < ".join(seen.where[:4]),
                of_ns=seen.profiled_ns,
                keys={"pid": who[1], "tid": seen.tid},
            ),
        )
        if seen
        else ()
    )
    score *= its.share * (_IN_KERNEL if its.in_kernel else 1.0) * (_SHORT if its.waited_ns > 1.5 * its.ran_ns else 1.0)
    return Verdict(CAUSE.name, score, f"{who[1]}/{its.start_tick}", words, (entry, *more), "", Culprit(who[1], who[0]))


def itself(episode: Episode, view: View) -> Iterator[Verdict]:
    its = own(episode, view)
    if its is None or episode.pid is None:
        yield Verdict(CAUSE.name, 0.0, "", "it hardly ran")
        return
    more = _loaded(episode, its)
    if not its.busy or more:
        text = "it ran on a CPU for {ran} of {needed}" + (", for more requests than usual" if its.busy else "")
        yield Verdict(CAUSE.name, 0.0, "", render(text, ran=span(its.ran_ns), needed=span(its.needed_ns)))
        return
    yield _verdict((episode.comm, episode.pid), its, _OWN * (1 - elsewhere(episode, view)), episode, view)


def _loaded(episode: Episode, its: Ran) -> bool:
    """Whether it ran for more requests, each of which took its usual time."""
    rate, usual = next(
        ((episode.facts.get(m), episode.facts.get(f"{m}_base")) for m in ("n", "cost") if m in episode.facts),
        (None, None),
    )
    return bool(rate and usual and rate >= 1.5 * usual and (its.usual or 0.0) * rate / usual >= _LOADED * its.share)


def peers(episode: Episode, view: View) -> Iterator[Verdict]:
    """The peer that it waited for."""
    for wait in on_peers(episode, view):
        if wait.own >= SHARE and not wait.slower and wait.server:
            its = ran(wait.server[1], episode, view)
            if its is not None and its.busy:
                yield _verdict(wait.server, its, _PEER * wait.own * wait.sure, episode, view)


def either(episode: Episode, view: View) -> Iterator[Verdict]:
    yield from peers(episode, view)
    yield from itself(episode, view)


def asking(episode: Episode, view: View) -> Iterator[Verdict]:
    """The server that did not answer tickscope's poll."""
    poll = polled(episode, view)
    if poll.server and not poll.slower and not poll.blind:
        its = ran(poll.server[1], episode, view)
        if its is not None and its.busy:
            yield _verdict(poll.server, its, 0.93, episode, view)


def erring(episode: Episode, view: View) -> Iterator[Verdict]:
    """A server that says so: Redis, in answer to any command, while it runs a script."""
    for end in chain(episode, view)[-1:]:
        its = ran(end.pids[0], episode, view) if end.pids and end.code == "BUSY" else None
        if its is not None and its.more:
            verdict = _verdict((end.comm, end.pids[0]), its, _PEER, episode, view)
            yield replace(verdict, score=end.capped(_PEER))  # its answers say that, however long they come


CAUSE = Cause(
    "busy",
    49,
    "a process computed without a pause and answered no request meanwhile: a blocked event loop,"
    " an interpreter lock, garbage collection, or a lock held by a computing thread",
    {**ANSWERS, **PEERS, **POLLS, **STARVED, **READS, **ASKERS, "on_cpu": PROFILES["on_cpu"]},
    "see where it runs: tickscope query on_cpu; py-spy dump --pid PID, node --prof, perf top -p PID",
    {
        "decision_latency": either,
        "service_latency": either,
        "broker_stall": asking,
        "blocked_time": itself,
        "service_errors": erring,
    },
)
