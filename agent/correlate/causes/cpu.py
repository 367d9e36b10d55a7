"""Ready to run, but not running: other processes ran, or a quota throttled it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause, symptom_of
from agent.correlate.consumption import consumption
from agent.correlate.cpu_starvation import READS, CpuStarvation, elsewhere, inside_ns, starved
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.polled import polled
from agent.correlate.preemption import near
from agent.correlate.view import View
from agent.correlate.waits import CPUS, PEERS, SHARE, on_peers, spent
from agent.correlate.words import process, render, span


def _starving(who: str, queued: float, pid: int | None, score: float, of: CpuStarvation) -> Verdict:
    """Processes that wait for a CPU at one time have one cause, except under a quota, which belongs to a cgroup."""
    entries = [
        item("syscall_latency", "time waiting for a CPU", queued, "ns", column="run_queue_ns", keys={"pid": pid})
    ]
    if of.waited_ns:
        entries[0] = item("cpu_wait", "time waiting for a CPU", queued, "ns", column="wait_ns", keys={"pid": pid})
    if of.by:
        entries.append(
            item(
                "cpu_wait",
                "of it while another process ran",
                of.by_ns,
                "ns",
                column="wait_ns",
                comm=of.by[0],
                keys={"pid": pid, "by_pid": of.by[1]},
            )
        )
    if of.group:
        entries.append(
            item(
                "resource",
                "CPU time withheld by a quota",
                of.throttled_ns,
                "ns",
                column="waited_ns",
                object=of.group,
                keys={"pid": pid},
            )
        )
    if of.pressed_ns:
        entries.append(
            item(
                "resource",
                "CPU pressure of the host (PSI, some)",
                of.pressed_ns,
                "ns",
                column="waited_ns",
                keys={"object": "pressure"},
            )
        )
    return Verdict(
        CAUSE.name,
        score,
        of.group if of.detail == "throttled" else of.detail,
        render("{who} was ready to run but waited {queued} for a CPU{why}", who=who, queued=span(queued), why=of.why),
        tuple(entries),
        of.detail,
        of.culprit,
    )


def peers(episode: Episode, view: View) -> Iterator[Verdict]:
    """The peer that it waited for."""
    for wait in on_peers(episode, view):
        if wait.share >= SHARE and not wait.slower and wait.starving and wait.server:
            of = starved(wait.server[1], episode, view)
            yield _starving(process(*wait.server), wait.starved_ns, wait.server[1], 0.9 * wait.share * wait.sure, of)


def own(episode: Episode, view: View) -> Iterator[Verdict]:
    """The process itself."""
    calls, lost, _ = spent(episode, view, "slow_syscall")
    of = CpuStarvation(0.0) if episode.pid is None else starved(episode.pid, episode, view)
    inside = max(float(calls["run_queue_ns"].clip(0).sum()), inside_ns(episode, view))
    # All its waits meanwhile, beyond the usual ones.
    whole = view.starved_ns(episode.pid, episode) if episode.pid is not None else 0.0
    whole = max(whole, float(view.own(view.during("cpu_delay", episode, 0), episode)["duration_ns"].sum()))
    whole *= near(episode)
    share = min(1.0, max(inside / lost, 0.7 * whole / lost)) * (1 - elsewhere(episode, view)) if lost else 0.0
    queued = max(inside, whole)
    if share < SHARE:
        entry = item(
            "syscall_latency", "time waiting for a CPU", queued, "ns", column="run_queue_ns", keys={"pid": episode.pid}
        )
        yield Verdict(
            CAUSE.name,
            0.0,
            "",
            render("it waited {queued} for a CPU", queued=span(queued)) if queued else "it did not wait for a CPU",
            (entry,),
        )
        return
    if symptom_of(episode).inside:
        queued = min(queued, lost)  # the sums per second include waits before and after
    yield _starving(process(episode.comm, episode.pid), queued, episode.pid, 0.97 * share, of)


def either(episode: Episode, view: View) -> Iterator[Verdict]:
    yield from peers(episode, view)
    yield from own(episode, view)


def withheld(episode: Episode, view: View) -> Iterator[Verdict]:
    """The wait for a CPU was seen already; this names what ran instead, or the quota."""
    if episode.metric not in ("throttled_ns", "delay_ns") or episode.pid is None:
        return
    of = starved(episode.pid, episode, view)
    queued = max(of.waited_ns, episode.value)
    yield _starving(process(episode.comm, episode.pid), queued, episode.pid, 0.97 if of.detail else 0.7, of)


def asking(episode: Episode, view: View) -> Iterator[Verdict]:
    """The server, or tickscope itself, which polled it."""
    poll = polled(episode, view)
    if poll.blind:
        yield Verdict(
            CAUSE.name,
            0.8,
            "",
            render("tickscope itself, which polls it, got no CPU for {blind}", blind=span(poll.blind_ns)),
            (
                item("syscall_latency", "time that tickscope did not run", poll.blind_ns, "ns", column="interval_ns"),
                poll.seen,
            ),
        )
    elif poll.starving and poll.server:
        yield _starving(
            process(*poll.server), poll.starved_ns, poll.server[1], 0.88, starved(poll.server[1], episode, view)
        )


def consumers(episode: Episode, view: View) -> Iterator[Verdict]:
    """Consumers of a queue: clients of its server."""
    starving = consumption(episode, view).starved
    if starving is not None:
        client, waited_ns = starving
        yield _starving(client.who, waited_ns, client.pid, 0.88, starved(client.pid, episode, view))


CAUSE = Cause(
    "cpu",
    80,
    "a process was ready to run, but got no CPU: other processes ran, or a quota throttled it",
    {**PEERS, **CPUS, **READS},
    "see what else runs: top; what ran instead: tickscope query cpu_wait; cgroup limits (cpu.stat: nr_throttled)",
    {
        "decision_latency": either,
        "refusals": peers,
        "accept_overflow": own,
        "service_latency": either,
        "broker_stall": asking,
        "queue_lag": consumers,
        "resource_low": withheld,
        "deadline_exceeded": either,
        "lookup_latency": own,
    },
    still_active=lambda view, from_ns, to_ns, now_ns: view.cpu_saturated(from_ns, to_ns, now_ns),
)
