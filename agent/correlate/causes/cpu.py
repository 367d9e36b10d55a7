"""Ready to run, but not running."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.polled import polled
from agent.correlate.view import View
from agent.correlate.waits import CPUS, PEERS, SHARE, on_peers, spent
from agent.correlate.words import process, span


def _hungry(who: str, queued: float, pid: int | None, score: float) -> Verdict:
    """All that starve at one time starve of one cause: it has no scope."""
    return Verdict(CAUSE.name, score, "", f"{who} was ready to run but waited {span(queued)} for a CPU",
                   (item("syscall_latency", "time waiting for a CPU", queued, "ns", column="run_queue_ns", pid=pid),))


def peers(episode: Episode, view: View) -> Iterator[Verdict]:
    """The peer that it waited for."""
    for p in on_peers(episode, view):
        if p.own >= SHARE and not p.slower and p.starving and p.server:
            yield _hungry(process(*p.server), p.starved_ns, p.server[1], 0.88 * p.own * p.sure)


def own(episode: Episode, view: View) -> Iterator[Verdict]:
    """The process itself."""
    calls, lost, _ = spent(episode, view, "slow_syscall")
    inside_ns = float(calls["run_queue_ns"].clip(0).sum())
    whole = view.own(view.sums(episode), episode)
    share = min(1.0, max(inside_ns / lost if lost else 0.0, 0.7 * float(whole["run_queue_ns"].sum()) / lost if lost else 0.0))
    queued = max(inside_ns, float(whole["run_queue_ns"].sum()))
    if share < SHARE:
        entry = item("syscall_latency", "time waiting for a CPU", queued, "ns", column="run_queue_ns", pid=episode.pid)
        yield Verdict(CAUSE.name, 0.0, "", f"it waited {span(queued)} for a CPU", (entry,))
        return
    if episode.declared.inside:
        queued = min(queued, lost)  # the sums per second also hold what was waited before and after
    yield _hungry(process(episode.comm, episode.pid), queued, episode.pid, 0.9 * share)


def either(episode: Episode, view: View) -> Iterator[Verdict]:
    yield from peers(episode, view)
    yield from own(episode, view)


def asking(episode: Episode, view: View) -> Iterator[Verdict]:
    """The server, or tickscope itself, which asked it."""
    p = polled(episode, view)
    if p.blind:
        yield Verdict(CAUSE.name, 0.8, "", f"tickscope itself, which asked, got no CPU for {span(p.blind_ns)}",
                      (item("syscall_latency", "time that tickscope did not run", p.blind_ns, "ns", column="interval_ns"), p.seen))
    elif p.starving and p.server:
        yield _hungry(process(*p.server), p.starved_ns, p.server[1], 0.88)


CAUSE = Cause(
    "cpu", 80, "a process was ready to run, but got no CPU", {**PEERS, **CPUS},
    "see what else runs there: top; cgroup limits (cpu.stat: nr_throttled); tickscope query syscall_latency --columns comm,run_queue_ns",
    {"decision_latency": either, "refusals": peers, "accept_overflow": own, "broker_stall": asking},
    lasts=lambda view, from_ns, to_ns, now_ns: view.crowded(from_ns, to_ns, now_ns))
