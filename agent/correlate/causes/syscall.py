"""A system call was held up on something other than a peer: files, locks on files, pipes that are full."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.rows import groups
from agent.correlate.view import NO_PEER, View
from agent.correlate.waits import SHARE, SYSCALLS, WAITING, spent
from agent.correlate.words import process, span, text


def held_up(episode: Episode, view: View) -> Iterator[Verdict]:
    rows, lost, threaded = spent(episode, view, "slow_syscall")
    rows = rows[(rows["kind"] != WAITING) & (rows["peer"] == NO_PEER)]
    if not len(rows):
        yield Verdict(CAUSE.name, 0.0, "", "no system call of that process was held up")
        return
    first, group = groups([rows["syscall"], rows["fd_type"]])
    totals = np.bincount(group, rows["duration_ns"])
    at = int(np.argmax(totals))
    share = min(1.0, float(totals[at]) / lost) if lost else 0.0
    call, fd = text(rows["syscall"][first[at]]), text(rows["fd_type"][first[at]])
    longest = float(rows["duration_ns"][group == at].max())
    words = f"the system call {call}{f' on a {fd}' if fd else ''} of {process(episode.comm, episode.pid)} was held up for {span(longest)}"
    entry = item("slow_syscall", call, longest, "ns", column="duration_ns", fd_type=fd, calls=int((group == at).sum()), pid=episode.pid, share=round(share, 2))
    queued = float(rows["run_queue_ns"][group == at].clip(0).sum())
    yield Verdict(CAUSE.name, (0.96 if threaded else 0.8) * share * (0.5 if queued > 0.5 * totals[at] else 1.0) if share >= SHARE else 0.0,
                  episode.scope, words, (entry,))


CAUSE = Cause(
    "syscall", 70, "a system call was held up, on something other than a peer", SYSCALLS,
    "see what it works on: tickscope query slow_syscall --columns comm,syscall,fd_type,duration_ns; a disk, a lock, or a pipe that nobody reads",
    {"decision_latency": held_up, "accept_overflow": held_up})
