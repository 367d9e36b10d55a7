"""A limit is reached: no descriptor, no local port, no space in a file system or memory in a broker is left."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import cast

import numpy as np

from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import chain, instances
from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.full_brokers import NAME, of_brokers
from agent.correlate.local import in_netns
from agent.correlate.refusing import READS as BROKERS
from agent.correlate.resource_rules import DISK, FD, PIDS, READS, full, of_process, was_free
from agent.correlate.rows import groups
from agent.correlate.view import View, to_peer
from agent.correlate.words import peer, process, render, text, value
from agent.tables import TABLES

_SURE = 0.97
_CLIENTS, _ROOM, _MEMORY = (
    ("clients", "takes no more clients"),
    ("disk_full", "cannot write: no room is left on its disk"),
    ("memory", "has no memory left"),
)
#: Errors of servers that have reached a limit: PostgreSQL and its poolers, MySQL, Redis.
WORDS_OF = {
    "53300": _CLIENTS,
    "1040": _CLIENTS,
    "1203": _CLIENTS,
    "1226": _CLIENTS,
    "53100": _ROOM,
    "1021": _ROOM,
    "1114": _ROOM,
    "MISCONF": _ROOM,
    "53200": _MEMORY,
    "1037": _MEMORY,
    "1038": _MEMORY,
    "OOM": _MEMORY,
    "53400": ("config", "reached a configured limit"),
    "54000": ("config", "reached a configured limit"),
}
_FAILED = TABLES["tcp_connect"].code("result", "failed")


def _verdict(episode: Episode, row: object, kind: int) -> Verdict:
    used, limit = float(row["used"]), float(row["limit"])  # type: ignore[index]
    where = text(row["object"])  # type: ignore[index]
    who = process(episode.comm, episode.pid)
    if kind == FD:
        words = render("{who} has {used} of {limit} files open", who=who, limit=value(limit), used=value(used))
        entry = item("resource", "open files", used, "", column="used", baseline=limit, keys={"pid": episode.pid})
        return Verdict(NAME, _SURE, episode.scope, words, (entry,), "fd", Culprit(episode.pid, episode.comm))
    if kind == PIDS:
        failed = float(row["events"])  # type: ignore[index]
        may = render(
            "its cgroup {where} reached its limit of {limit} processes and threads", where=where, limit=value(limit)
        )
        # With fewer processes now, some may have ended since; or, before Linux 6.11, the limit was that of a cgroup
        # above.
        words = (
            may
            if 0 < limit <= used
            else render(
                "its cgroup {where}, or one above it, reached its limit of processes and threads",
                where=where,
            )
        )
        entry = item(
            "resource",
            "processes that could not be started",
            failed,
            "",
            column="events",
            baseline=max(limit, 0.0),
            object=where,
            keys={"pid": episode.pid},
        )
        return Verdict(NAME, _SURE, f"pids {where}", words, (entry,), "pids", Culprit(episode.pid, episode.comm, where))
    words = render("the file system {where}, which {who} writes to, has no room left", where=where, who=who)
    entry = item(
        "resource",
        "bytes in use",
        used,
        "bytes",
        column="used",
        baseline=limit,
        object=where,
        keys={"pid": episode.pid},
    )
    return Verdict(NAME, _SURE, f"disk {where}", words, (entry,), "disk_full", Culprit(object=where))


def seen(episode: Episode, view: View) -> Iterator[Verdict]:
    """For ``resource_low``: the limit itself was seen."""
    for metric, kind in (("fd", FD), ("disk", DISK), ("pids", PIDS)):
        rows = of_process(episode, view, kind)
        rows = rows[full(rows) & (rows["object"] == episode.key[3])]
        if episode.metric == metric and len(rows):
            yield _verdict(episode, rows[-1], kind)


def behind(episode: Episode, view: View) -> Iterator[Verdict]:
    """For another symptom of that process: a limit reached meanwhile, and not long before. A full disk makes calls
    fail, not slow.
    """
    for kind in (FD, PIDS, *((DISK,) if episode.symptom in ("refusals", "service_errors") else ())):
        rows = of_process(episode, view, kind)
        rows = rows[full(rows)]
        if len(rows) and was_free(rows[-1], episode, view):
            yield _verdict(episode, rows[-1], kind)
            return
    yield Verdict(NAME, 0.0, "", "no known limit was reached")


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """For failing decisions, a broker that refuses, or answers with errors."""
    for end in chain(episode, view)[-1:]:
        if end.how == "answered" and end.code in WORDS_OF:
            detail, what = WORDS_OF[end.code]
            words = render(
                "{who} {what} ({error} in answer to {n}{asked})",
                who=end.who,
                what=what,
                error=end.error_text,
                n=value(end.n, "request"),
                asked=end.requested_by,
            )
            yield Verdict(NAME, end.capped(_SURE), end.where, words, end.evidence(), detail, end.culprit)
        elif end.how == "refused" and end.errno == errno.EADDRNOTAVAIL:
            yield from _no_port(end.netns, end.raw, episode, view, end.name)
    for instance in instances(episode, view):
        yield from behind(instance, view)
    yield from of_brokers(episode, view)
    if episode.pid is not None:
        yield from behind(episode, view)


def no_port(episode: Episode, view: View) -> Iterator[Verdict]:
    """Connects that failed before a SYN was sent: each local port is in use to that peer, or in TIME_WAIT."""
    netns, raw = cast("tuple[int, bytes]", episode.key)
    yield from _no_port(netns, raw, episode, view, "it")


def _no_port(netns: int | None, raw: bytes, episode: Episode, view: View, to: str) -> Iterator[Verdict]:
    rows = in_netns(to_peer(view.during("tcp_connect", episode), raw), netns)
    failed = rows[rows["result"] == _FAILED]
    none = failed[failed["errno"] == errno.EADDRNOTAVAIL]
    if not len(none) or 2 * len(none) < len(failed):
        return
    first, group = groups([none["pid"]])
    row = none[first[int(np.argmax(np.bincount(group)))]]
    who, pid, name = text(row["comm"]), int(row["pid"]), peer(raw)
    words = render(
        "no local port was left for {n} to {to}, most of them of {who} (EADDRNOTAVAIL)",
        n=value(len(none), "connection"),
        to=to,
        who=process(who, pid),
    )
    entry = item(
        "tcp_connect",
        "connects without a port",
        len(none),
        "",
        column="errno",
        keys={"peer": name, "errno": errno.EADDRNOTAVAIL},
    )
    yield Verdict(NAME, _SURE, f"ports to {name} in {netns}", words, (entry,), "ports", Culprit(pid, who))


CAUSE = Cause(
    NAME,
    15,
    "a limit was reached: file descriptors, processes, local ports, disk space, memory or clients of a broker",
    {**BROKERS, **READS, **ANSWERS},
    "raise the limit, or find what uses it up: tickscope query resource; ls /proc/PID/fd; pids.max, pids.events of its"
    " cgroup; df; ss -tan dst PEER and sysctl net.ipv4.ip_local_port_range; of Redis: CONFIG GET maxmemory, CONFIG GET"
    " maxclients",
    {
        "resource_low": seen,
        "decision_latency": behind,
        "refusals": behind,
        "accept_overflow": behind,
        "lookup_failures": behind,
        "service_errors": failing,
        "broker_down": of_brokers,
        "connect_failures": no_port,
    },
    merge_group="broker",
)
