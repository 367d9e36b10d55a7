"""Calls on files waited for a disk: its file system was frozen, another process wrote much to it meanwhile, a cgroup's
limit throttled it, or it was slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate import profiles
from agent.correlate.calls import lasted
from agent.correlate.catalogue import Cause
from agent.correlate.cpu_starvation import READS as CPUS
from agent.correlate.cpu_starvation import cpu_saturated
from agent.correlate.episode import UNKNOWN_CULPRIT, Culprit, Episode, Verdict, item
from agent.correlate.resource_rules import IO, IOPS, of_process
from agent.correlate.resource_rules import READS as RESOURCES
from agent.correlate.rows import groups, start_ticks
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.waits import SHARE, SYSCALLS, WAITING, spent
from agent.correlate.words import Fact, Words, process, render, span, text, value
from agent.tables import TABLES

_READS = (b"read", b"readv", b"pread64", b"preadv", b"preadv2")
_WRITES = (
    b"write",
    b"writev",
    b"pwrite64",
    b"pwritev",
    b"pwritev2",
    b"fsync",
    b"fdatasync",
    b"syncfs",
    b"sync_file_range",
)
_READ, _WRITE = (TABLES["resource"].code("direction", name) for name in ("read", "write"))
_FILES, _LOCKS = (b"file", b"directory", b"block device"), (b"flock", b"fcntl", b"fcntl64")
_MUCH_BYTES = 1 << 20
_TIMES = 4  # the bytes of another process against those of the process that waited
#: A request explains a call if it took this long, and this part of the call. So do requests that take this long on
#: average, since a call may need several.
_SLOW_NS, _PART = 20_000_000, 0.3
# factor for slow requests while the CPUs were busy, since kernel threads work on requests
_SATURATED = 0.6
_REACH_NS = 10 * SECOND  # the other process's call may go on for longer


def busy(episode: Episode, view: View) -> Iterator[Verdict]:
    calls, lost, threaded = spent(episode, view, "slow_syscall")
    calls = calls[(calls["kind"] != WAITING) & np.isin(calls["fd_type"], _FILES) & ~np.isin(calls["syscall"], _LOCKS)]
    if not len(calls) or not lost:
        yield Verdict(CAUSE.name, 0.0, "", "no call of that process on a file was blocked")
        return
    _, group = groups([calls["device"]])
    mine = calls[group == int(np.argmax(np.bincount(group, calls["duration_ns"])))]
    disk, share = text(mine["device"][0]), min(1.0, float(mine["duration_ns"].sum()) / lost)
    where = Culprit(object=f"/dev/{disk}" if disk else "")
    queued = mine["run_queue_ns"].clip(0).sum() > 0.5 * mine["duration_ns"].sum()
    score = (0.98 if threaded else 0.82) * share * (0.5 if queued else 1.0) if share >= SHARE else 0.0
    longest = mine[int(np.argmax(mine["duration_ns"]))]
    facts: dict[str, Fact] = {
        "disk": disk or "its disk",
        "who": process(episode.comm, episode.pid),
        "longest": lasted(longest, float(longest["duration_ns"])),
        "call": text(longest["syscall"]),
    }
    frozen = mine[mine["frozen"] == 1]
    if frozen["duration_ns"].sum() > 0.5 * mine["duration_ns"].sum():
        words = render(
            "the file system on {disk} was frozen (as for a snapshot) while {call} of {who} waited for {longest}",
            **facts,
        )
        entry = item(
            "slow_syscall",
            "calls that waited for a frozen file system",
            float(len(frozen)),
            "",
            column="frozen",
            object=disk,
            keys={"pid": episode.pid},
        )
        yield Verdict(CAUSE.name, score, episode.scope, words, (entry,), detail="frozen", culprit=where)
        return
    limited = _limited(episode, view, mine)
    writer = _writer(episode, view, mine, limited is not None) if disk else None
    if limited is not None:
        yield _by_limit(episode, limited, facts, 0.97 * share if score else 0.0, writer)
        return
    if writer is None:
        score *= _SATURATED if cpu_saturated(episode, view) else 1.0
        yield _by_itself(
            episode, profiles.disk(episode, view, disk), facts, score, float(longest["duration_ns"]), where
        )
        return
    who, wrote = writer
    words = render(
        "{other} wrote {wrote} MB to {disk} meanwhile and kept it busy, while {call} of {who} waited for {longest}",
        other=process(who.comm, who.pid),
        wrote=value(round(wrote / 1e6, 1)),
        **facts,
    )
    entry = item(
        "slow_syscall",
        "written by another process",
        wrote,
        "bytes",
        column="written_bytes",
        object=disk,
        keys={"pid": who.pid},
    )
    yield Verdict(
        CAUSE.name,
        score,
        episode.scope,
        words,
        (entry,),
        detail="contended",
        culprit=Culprit(who.pid, who.comm, where.object),
    )


def _limited(episode: Episode, view: View, mine: np.ndarray) -> np.void | None:
    """The I/O limit of its cgroup that it met on the disk of these calls; the nearest to its limit. Calls that neither
    read nor write may wait for either.
    """
    rows = np.concatenate([of_process(episode, view, kind) for kind in (IO, IOPS)])
    disk, reads, writes = mine["device"][0], np.isin(mine["syscall"], _READS), np.isin(mine["syscall"], _WRITES)
    there = np.array([disk in (b"", *its.split()) or its == b"" for its in rows["device"].tolist()], np.bool_)
    vain = [code for code, other in ((_READ, writes), (_WRITE, reads)) if other.all()]
    rows = rows[there & ~np.isin(rows["direction"], vain)]
    return rows[int(np.argmax(rows["used"] / np.maximum(rows["limit"], 1)))] if len(rows) else None


def _by_limit(
    episode: Episode, row: np.void, facts: dict[str, Fact], score: float, writer: tuple[Culprit, float] | None
) -> Verdict:
    """writer: the process that may have used it up."""
    group, used, limit = text(row["object"]), float(row["used"]), float(row["limit"])
    what, many = ("bytes", 1e6) if row["kind"] == IO else ("requests", 1.0)
    who, wrote = writer or (UNKNOWN_CULPRIT, 0.0)
    words = render(
        "its cgroup {group} reached its {do} limit of {limit} per second on {on} while {call} of {who} waited for"
        " {longest}{other}",
        group=group,
        do={_READ: "read", _WRITE: "write"}.get(int(row["direction"]), "I/O"),
        on=text(row["device"]).partition(" ")[0] or "a disk",
        limit=value(round(limit / many, 1), "MB" if many > 1 else "request"),
        other=(
            render(
                "; {other} wrote {wrote} MB to {disk} meanwhile",
                other=process(who.comm, who.pid),
                wrote=value(round(wrote / 1e6, 1)),
                disk=facts["disk"],
            )
            if writer
            else ""
        ),
        **facts,
    )
    entry = item(
        "resource",
        f"{what} per second",
        used,
        "",
        column="used",
        baseline=limit,
        object=group,
        keys={"pid": episode.pid},
    )
    return Verdict(CAUSE.name, score, episode.scope, words, (entry,), "throttled", Culprit(who.pid, who.comm, group))


def _by_itself(
    episode: Episode,
    seen: profiles.Disk | None,
    facts: dict[str, Fact],
    score: float,
    longest_ns: float,
    where: Culprit,
) -> Verdict:
    """From an on-demand profile of the disk, if there was one."""
    none = render("no other process wrote much to {disk} meanwhile", disk=facts["disk"])
    if seen is None:
        return Verdict(CAUSE.name, 0.0, "", none, culprit=where)
    entry = item(
        "block_io",
        "the slowest request",
        seen.slowest_ns,
        "ns",
        column="max_ns",
        object=str(facts["disk"]),
        requests=seen.requests,
        each_ns=round(seen.each_ns),
        queued_ns=round(seen.queued_ns),
    )
    details = {**facts, "slowest": span(seen.slowest_ns), "each": span(seen.each_ns)}
    if seen.slowest_ns < _SLOW_NS or (seen.slowest_ns < _PART * longest_ns and seen.each_ns < _SLOW_NS):
        words = render("{none}, and its requests took {each} each, {slowest} at most", none=none, **details)
        return Verdict(CAUSE.name, 0.0, "", words, (entry,), culprit=where)
    by: Words = ""
    who = where
    if seen.writer is not None:
        who = Culprit(seen.writer.pid, seen.writer.comm, where.object)
        by = render(
            "; {other} wrote {mb} MB to it meanwhile",
            other=process(who.comm, who.pid),
            mb=value(round(seen.wrote / 1e6, 1)),
        )
    words = render(
        "requests to {disk} took up to {slowest} while {call} of {who} waited for {longest}{by}", by=by, **details
    )
    return Verdict(CAUSE.name, score, episode.scope, words, (entry,), detail="slow", culprit=who)


def _writer(episode: Episode, view: View, mine: np.ndarray, other: bool) -> tuple[Culprit, float] | None:
    """The process that wrote most to the disk of these calls while they waited, and its bytes, if these are far more
    than their own. other: only processes of the same cgroup, which share its limit.
    """
    rows = view.rings["slow_syscall"].between(episode.start_ns, episode.end_ns + _REACH_NS)
    begun = rows["t_ns"] - rows["duration_ns"]
    rows = rows[(rows["device"] == mine["device"][0]) & (begun <= episode.end_ns) & (rows["written_bytes"] > 0)]
    rows = rows[(rows["pid"] != episode.pid) | (start_ticks(rows) != episode.start_tick)]
    rows = rows[rows["cgroup_id"] == mine["cgroup_id"][0]] if other else rows
    own = float(mine["written_bytes"].clip(0).sum())
    if not len(rows):
        return None
    first, group = groups([rows["pid"], rows["proc_start_ns"]])
    wrote = np.bincount(group, rows["written_bytes"])
    at = int(np.argmax(wrote))
    if wrote[at] < max(_MUCH_BYTES, _TIMES * own) or _beside(mine, rows[group == at]) < 0.5:
        return None
    row = rows[first[at]]
    return Culprit(int(row["pid"]), text(row["comm"])), float(wrote[at])


def _beside(mine: np.ndarray, others: np.ndarray) -> float:
    """The share of the time of these calls in which one of the others ran, too."""
    edges = np.sort(np.concatenate([others["t_ns"] - others["duration_ns"], others["t_ns"]]))
    middles, lengths = (edges[1:] + edges[:-1]) // 2, np.diff(edges)
    inside = ((others["t_ns"] - others["duration_ns"])[None] <= middles[:, None]) & (
        middles[:, None] <= others["t_ns"][None]
    )
    lengths = lengths * inside.any(axis=1)
    start, end = mine["t_ns"] - mine["duration_ns"], mine["t_ns"]
    shared = np.minimum(end[:, None], edges[None, 1:]) - np.maximum(start[:, None], edges[None, :-1])
    return float((shared.clip(0) * (lengths > 0)[None]).sum() / max(1, mine["duration_ns"].sum()))


CAUSE = Cause(
    "disk",
    68,
    "calls on files waited for the disk: its file system was frozen, another process kept it"
    " busy, a cgroup limit throttled it, or the disk was slow",
    {
        **CPUS,
        **SYSCALLS,
        **RESOURCES,
        "slow_syscall": (*SYSCALLS["slow_syscall"], "cgroup_id"),
        "block_io": profiles.READS["block_io"],
    },
    "see who writes: tickscope query slow_syscall --columns comm,pid,syscall,device,written_bytes,frozen,duration_ns;"
    " give the writer less of the disk (io.max), or a disk of its own; limits: io.max, blkio.throttle.*_device of its"
    " cgroup",
    {"decision_latency": busy, "accept_overflow": busy, "service_latency": busy, "blocked_time": busy},
)
