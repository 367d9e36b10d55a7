"""Servers that answer with errors: which ones, what they say, and along a chain of calls where the errors begin, as far as it runs on this host. Pure.

A server whose own requests fail meanwhile, by an error, a refused connect or a wait that it gives up, passes the failure on: the next one is looked at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from agent.common.copies import pick
from agent.correlate.episode import Culprit, Episode, item
from agent.correlate.givenup import given_up
from agent.correlate.local import in_netns
from agent.correlate.rows import as_bytes, groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, SERVERS, View, place, to_peer
from agent.correlate.words import Words, peer, tell, text
from agent.tables import TABLES

READS = {
    **SERVERS,
    "service_answer": ("netns", "peer", "protocol", "code", "count"),
    "tcp_connect": ("netns", "peer", "result", "errno", "duration_ns"),
    "tcp_close": ("netns", "peer", "role", "waited_ns"),
    "slow_syscall": ("kind", "peer", "duration_ns"),
}
_FAILED = TABLES["tcp_connect"].code("result", "failed")
#: Words of Redis with which clients are told where to go, or what to load: no errors.
_ORDERLY = (b"", b"MOVED", b"ASK", b"NOSCRIPT", b"BUSYGROUP", b"EXECABORT")
_SERVER, _WAITING = TABLES["tcp_rtt"].code("role", "server"), TABLES["slow_syscall"].code("kind", "waiting")
_HOPS, _PIDS = 4, 64
_SHARE, _LEAST = 0.2, 2  # of what it asked, more than usually, that must have failed for a server to pass it on
_SLACK_NS, _BEFORE_NS = SECOND, 60 * SECOND
_LONG_NS = 300_000_000
#: Errors that say what is the matter: nobody else is to blame. Of PostgreSQL, MySQL and Redis.
LIMITS = (
    "53300",
    "53100",
    "53200",
    "53400",
    "54000",
    "1040",
    "1203",
    "1226",
    "1021",
    "1114",
    "1037",
    "1038",
    "OOM",
    "MISCONF",
)
ONLY_READS = ("READONLY", "NOREPLICAS", "25006", "1290", "1836")
UNREADY = ("LOADING", "CLUSTERDOWN", "MASTERDOWN", "57P01", "57P02", "57P03", "1053")
_CALLED = {"http": "HTTP", "postgresql": "SQLSTATE", "mysql": "error", "amqp": "reply code"}


def errors(rows: np.ndarray) -> np.ndarray:
    """Which rows of ``service_answer`` are errors."""
    return ~np.isin(rows["code"], _ORDERLY)


def said(protocol: str, code: str) -> str:
    """An error's code as people know it."""
    return f"{_CALLED[protocol]} {code}" if protocol in _CALLED and code != "error" else code


@dataclass(frozen=True)
class FailedHop:
    """A server that was asked, and how that failed. how: answered (with errors: code, protocol), refused (connects: errno) or given_up. raw: ip:port as in rows; pids: who serves it, or did so before, the last one first.
    by: who asked it, in words; empty for the first one, whose clients are the episode's. n: how often it was seen."""

    raw: bytes
    netns: int | None
    how: str
    n: int
    pids: tuple[int, ...] = ()
    comm: str = ""
    protocol: str = ""
    code: str = ""
    errno: int = 0
    by: str = ""

    @property
    def name(self) -> str:
        return peer(self.raw)

    @property
    def where(self) -> str:
        return place(self.name, self.raw, self.netns)

    @property
    def who(self) -> str:
        return f"{self.comm} (pid {self.pids[0]}) at {self.name}" if self.pids else f"the server at {self.name}"

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.pids[0], self.comm, self.name) if self.pids else Culprit(object=self.name)

    @property
    def says(self) -> str:
        return said(self.protocol, self.code)

    @property
    def speaks(self) -> bool:
        """Whether its error says what is the matter."""
        return self.code in (*LIMITS, *ONLY_READS, *UNREADY)

    @property
    def asked(self) -> Words:
        """Who asked it, to end words with."""
        return tell(" that {by} asked of it", by=self.by) if self.by else ""

    def evidence(self) -> tuple[dict[str, object], ...]:
        if self.how == "answered":
            return (item("service_answer", f"{self.says} answers", self.n, "", column="count", peer=self.name),)
        if self.how == "refused":
            return (item("tcp_connect", "failed connects", self.n, "", peer=self.name, errno=self.errno),)
        return (item("tcp_close", "requests given up", self.n, "", column="waited_ns", peer=self.name),)


def is_about_answers(episode: Episode) -> bool:
    """Whether it is one of a server's answers: its key is (network namespace, ip:port)."""
    return len(episode.key) == 2 and isinstance(episode.key[0], int)


def chain(episode: Episode, view: View) -> list[FailedHop]:
    """From the server that the episode is about to the one at which the errors begin. Empty where it is about no answers."""
    return view.once(_chain, episode) if is_about_answers(episode) else []


def seats(episode: Episode, view: View) -> list[Episode]:
    """The episode as each process of this host has it that serves where the errors begin: what is known of a process is found so."""
    return view.once(_seats, episode) if is_about_answers(episode) else []


def _chain(episode: Episode, view: View) -> list[FailedHop]:
    netns, raw = episode.key
    assert isinstance(netns, int)
    assert isinstance(raw, bytes)
    rows, before = (in_netns(to_peer(part, raw), netns) for part in _both(view, episode))
    first = _most_said(rows, before, raw, netns)
    found = [_served(first or FailedHop(raw, netns, "answered", 0), view, episode)]
    while len(found) < _HOPS and found[-1].how != "refused" and found[-1].pids and not found[-1].speaks:
        step = (_asks if found[-1].how == "answered" else _waits)(found[-1], episode, view)
        if step is None or step.raw in {one.raw for one in found}:
            break
        found.append(_served(replace(step, by=found[-1].who), view, episode))
    return found


def _now(view: View, table: str, episode: Episode) -> np.ndarray:
    return view.rings[table].between(episode.start_ns - _SLACK_NS, episode.end_ns + _SLACK_NS)


def _both(view: View, episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    """What servers answered meanwhile, and before."""
    before = view.rings["service_answer"].between(episode.start_ns - _BEFORE_NS, episode.start_ns - _SLACK_NS)
    return _now(view, "service_answer", episode), before


def _counts(rows: np.ndarray) -> Counter[tuple[bytes, bytes]]:
    counts: Counter[tuple[bytes, bytes]] = Counter()
    for row in rows[errors(rows)]:
        counts[row["protocol"], row["code"]] += max(int(row["count"]), 1)
    return counts


def _most_said(rows: np.ndarray, before: np.ndarray, raw: bytes, netns: int | None) -> FailedHop | None:
    """The error of which there were most beyond what is usual."""
    counts, usually = _counts(rows), _counts(before)
    some = max(int(rows["count"].sum()), 1) / max(int(before["count"].sum()), 1)
    if not counts:
        return None
    (protocol, code), n = max(counts.items(), key=lambda entry: (entry[1] - some * usually[entry[0]], entry[0]))
    return FailedHop(raw, netns, "answered", n, protocol=text(protocol), code=text(code))


def _served(one: FailedHop, view: View, episode: Episode) -> FailedHop:
    served = view.servers.of_late(one.raw, one.netns, view.has_address(one.raw, one.netns, episode))
    return replace(one, pids=tuple(pid for _, pid in served), comm=served[0][0]) if served else one


def _asks(server: FailedHop, episode: Episode, view: View) -> FailedHop | None:
    """What failed of what a server's processes asked others meanwhile."""
    connects = _of(_now(view, "tcp_connect", episode), server.pids)
    failed = connects[connects["result"] == _FAILED]
    answers = _of(_now(view, "service_answer", episode), server.pids)
    found = [one for rows in (failed, answers) for one in _by_peer(rows, server, episode, view)]
    given = _of(given_up(_now(view, "tcp_close", episode), connects), server.pids)
    given = given[given["t_ns"] >= episode.start_ns - _SLACK_NS]
    if len(given):
        raw, netns, n = _largest(given, np.ones(len(given)))
        found.append(FailedHop(raw, netns, "given_up", n))
    return max(found, key=lambda one: one.n, default=None)


def _by_peer(rows: np.ndarray, server: FailedHop, episode: Episode, view: View) -> list[FailedHop]:
    """Of connects that failed, or answers: the peer of which most did, where that is no usual share."""
    refused = "errno" in (rows.dtype.names or ())
    bad = rows if refused else rows[errors(rows)]
    if not len(bad):
        return []
    raw, netns, n = _largest(bad, np.ones(len(bad)) if refused else bad["count"])
    if n < _LEAST:
        return []
    if refused:
        return [FailedHop(raw, netns, "refused", n, errno=int(bad["errno"][bad["peer"] == np.frombuffer(raw, "V18")[0]][0]))]  # fmt: skip
    before = to_peer(_of(_both(view, episode)[1], server.pids), raw)
    one = _most_said(to_peer(rows, raw), before, raw, netns)
    return [one] if one is not None and _share(to_peer(rows, raw)) >= _share(before) + _SHARE else []


def _waits(server: FailedHop, episode: Episode, view: View) -> FailedHop | None:
    """Whom a server waited for that was given up itself: the calls of its processes that waited longest for one that they had connected to."""
    calls = _of(view.rings["slow_syscall"].between(episode.start_ns - _SLACK_NS, episode.end_ns + 2 * SECOND), server.pids)  # fmt: skip
    calls = calls[(calls["kind"] == _WAITING) & (calls["peer"] != NO_PEER) & (calls["duration_ns"] >= _LONG_NS)]
    talks = _of(view.rings["tcp_rtt"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND), server.pids)
    talks = talks[talks["role"] != _SERVER]
    calls = calls[np.isin(as_bytes(calls["peer"]), as_bytes(talks["peer"]))]
    if not len(calls):
        return None
    first, group = groups([calls["peer"]])
    raw = calls["peer"][first[int(np.argmax(np.bincount(group, calls["duration_ns"])))]].tobytes()
    netns = to_peer(talks, raw)["netns"][-1]
    return FailedHop(raw, int(netns) if known(netns) else None, "given_up", int(np.bincount(group).max()))


def _share(rows: np.ndarray) -> float:
    n = rows["count"].clip(0)
    return float(n[errors(rows)].sum() / max(n.sum(), 1))


def _largest(rows: np.ndarray, weights: np.ndarray) -> tuple[bytes, int | None, int]:
    first, group = groups([rows["netns"], rows["peer"]])
    sums = np.bincount(group, weights)
    row = rows[first[int(np.argmax(sums))]]
    return row["peer"].tobytes(), int(row["netns"]) if known(row["netns"]) else None, int(sums.max())


def _of(rows: np.ndarray, pids: tuple[int, ...]) -> np.ndarray:
    return pick(rows, np.isin(rows["pid"], pids[:_PIDS]))


def _seats(episode: Episode, view: View) -> list[Episode]:
    end = chain(episode, view)[-1]
    talks = view.rings["tcp_rtt"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND)
    found = []
    for pid in end.pids:
        mine = talks[talks["pid"] == pid]
        if len(mine):
            tick, comm = int(mine["proc_start_ns"][-1]) // 10_000_000, text(mine["comm"][-1])
            found.append(replace(episode, pid=pid, start_tick=tick, comm=comm, ranked=None))
    return found
