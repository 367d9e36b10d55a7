"""Threads waited for a lock of the kernel: threads of the process, or those that answer SYNs for its port."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Evidence, Verdict, item
from agent.correlate.profiles import HANDSHAKE, READS, locked, locked_share, profiled
from agent.correlate.rows import groups
from agent.correlate.view import View
from agent.correlate.words import process, render, span, text, value

#: Waits for one lock count from this share of a profile, or of the longest delay, on.
_SHARE, _LEAST_NS = 0.3, 5_000_000


#: Of a listener, or of a peer: ADDRESS:PORT.
_PORT = re.compile(r"[\]\d*]:(\d{1,5})(?=$|[\s)])")


def waited(episode: Episode, view: View) -> Iterator[Verdict]:
    """Waits of its threads for one lock, on any path."""
    rows = locked(episode, view)
    if not len(rows):
        return
    first, group = groups([rows["lock"]])
    totals = np.bincount(group, rows["sum_ns"])
    at = int(np.argmax(totals))
    mine = rows[group == at]
    longest, spent = float(mine["max_ns"].max()), float(totals[at])
    share = max(
        spent / max(float(mine["interval_ns"].max()), 1.0),
        longest / episode.value if episode.unit == "ns" and episode.value > 0 else 0.0,
        locked_share(episode, view, mine),
    )
    lock = text(rows["lock"][first[at]])
    entry = _entry(mine, lock, spent, episode.pid)
    if longest < _LEAST_NS or share < _SHARE:
        words = render("its threads waited for kernel locks for at most {longest}", longest=span(longest))
        yield Verdict(CAUSE.name, 0.0, "", words, (entry,))
        return
    words = render(
        "threads of {who} waited for the kernel lock {lock} {times}, for up to {longest}",
        who=process(episode.comm, episode.pid),
        lock=lock,
        times=value(int(mine["count"].sum()), "time"),
        longest=span(longest),
    )
    yield Verdict(
        CAUSE.name,
        0.85 * min(1.0, share + 0.3),
        episode.scope,
        words,
        (entry,),
        text(mine["kind"][0])[:24],
        Culprit(object=lock),
    )


def answered_late(episode: Episode, view: View) -> Iterator[Verdict]:
    """Late SYN-ACKs of this host, with waits for locks between the SYN and the SYN-ACK."""
    if episode.symptom != "accept_overflow" and view.serving(episode) is None:
        return  # another host answers
    answers, locks = profiled(episode, view, "syn_ack"), profiled(episode, view, "lock_contention")
    found = _PORT.search(episode.subject)
    port = int(found[1]) if found else -1
    answers = answers[answers["sport"] == port]
    locks = locks[locks["path"] == HANDSHAKE]
    if not len(answers):
        return
    slowest = float(answers["max_ns"].max())
    shown = item(
        "syn_ack", "the slowest SYN-ACK", slowest, "ns", column="max_ns", object=f"port {port}", keys={"sport": port}
    )
    longest = float(locks["max_ns"].max()) if len(locks) else 0.0
    if slowest < _LEAST_NS or longest < _SHARE * slowest:
        words = render(
            "this host answered each SYN within {slowest} and waited {longest} for kernel locks meanwhile",
            slowest=span(slowest),
            longest=span(longest),
        )
        yield Verdict(CAUSE.name, 0.0, "", words, (shown,))
        return
    mine = locks[[int(np.argmax(locks["max_ns"]))]]
    lock = text(mine["lock"][0])
    words = render(
        "this host took up to {slowest} to answer a SYN, and waited up to {longest} for the kernel lock {lock}"
        " meanwhile",
        slowest=span(slowest),
        longest=span(longest),
        lock=lock,
    )
    evidence = (shown, _entry(mine, lock, float(locks["sum_ns"].sum()), None))
    yield Verdict(
        CAUSE.name,
        0.9 * min(1.0, longest / slowest + 0.3),
        episode.scope,
        words,
        evidence,
        "syn_ack",
        Culprit(object=lock),
    )


def _entry(rows: np.ndarray, lock: str, spent: float, pid: int | None) -> Evidence:
    where = " < ".join(text(rows["kernel_stack"][int(np.argmax(rows["sum_ns"]))]).split(";")[:4])
    return item(
        "lock_contention",
        "time waiting for a kernel lock",
        spent,
        "ns",
        column="sum_ns",
        object=lock,
        stack=where,
        times=int(rows["count"].sum()),
        keys={"pid": pid},
    )


CAUSE = Cause(
    "kernel_lock",
    72,
    "threads waited for a kernel lock",
    READS,
    "see which lock, and on which code path: tickscope query lock_contention --columns"
    " comm,lock,kind,path,max_ns,kernel_stack; fewer threads on one file, one mapping, or one listener (SO_REUSEPORT),"
    " or a newer kernel",
    {
        "decision_latency": waited,
        "service_latency": waited,
        "blocked_time": waited,
        "accept_overflow": answered_late,
        "connect_failures": answered_late,
        "connect_latency": answered_late,
    },
)
