"""Servers that answer with errors: which servers, with which errors, and where along a chain of calls the errors begin,
as far as it runs on this host. Pure.

A server passes the failure on if its own requests fail meanwhile, by an error, a refused connect, a connection that is
reset or closed without an answer, or a wait that it gives up. Then the next server is examined.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from agent.columns import NULL_I64
from agent.common.copies import pick
from agent.correlate.abandoned import LEAST_NS, given_up
from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.local import in_netns
from agent.correlate.rows import as_bytes, groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, SERVERS, View, place, to_peer
from agent.correlate.words import Words, peer, process, render, text
from agent.tables import TABLES

READS = {
    **SERVERS,
    "service_answer": ("netns", "peer", "protocol", "code", "count", "uid"),
    "service_latency": ("uid",),
    "tcp_connect": ("netns", "peer", "result", "errno", "duration_ns"),
    "tcp_close": ("netns", "peer", "role", "waited_ns", "bytes_in", "bytes_out"),
    "tcp_reset": ("netns", "peer", "role", "direction"),
    "slow_syscall": ("kind", "peer", "duration_ns"),
}
_FAILED = TABLES["tcp_connect"].code("result", "failed")
#: Errors of Redis that redirect clients or are part of normal use: no errors. Unknown are subcommands: clients
#: introduce themselves with CLIENT SETINFO, also to older servers.
_ORDERLY = (
    *(b"", b"MOVED", b"ASK", b"TRYAGAIN", b"NOSCRIPT", b"BUSYGROUP", b"EXECABORT"),
    *(b"ERR unknown", b"ERR Unknown"),
)
#: Errors that programs provoke on purpose and handle: wrong values, duplicate rows, transactions to be retried.
#: PostgreSQL's by prefix, and MySQL's.
_PROVOKED = (b"22", b"23", b"40001", b"P0001")
_PROVOKED_MYSQL = (b"1048", b"1062", b"1264", b"1292", b"1366", b"1406", b"1451", b"1452", b"1644", b"3819")
_CLIENT = TABLES["tcp_close"].code("role", "client")
_RECEIVED = TABLES["tcp_reset"].code("direction", "received")
_SERVER, _WAITING = TABLES["tcp_rtt"].code("role", "server"), TABLES["slow_syscall"].code("kind", "waiting")
_HOPS, _PIDS = 4, 64
_CALL = np.dtype([("netns", np.int64), ("peer", "V18"), ("duration_ns", np.int64)])
# a server passes failures on if this share of its own requests failed beyond the usual, and at least so many
_SHARE, _LEAST = 0.2, 2
_OWN_SHARE = 0.05  # the same of a process whose own work fails
_TIMES = 3  # times the usual number, where no share is known
_SLACK_NS, _BEFORE_NS = SECOND, 60 * SECOND
_LONG_NS = 300_000_000
_ONE_USER_SCORE = (
    # limit for reports that one user's programs alone make about another user's server: they control their own memory
    0.8
)
#: Errors that name their own cause, so that no other server is to blame. Of PostgreSQL, MySQL and Redis.
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


def faults(rows: np.ndarray) -> np.ndarray:
    """Which rows are errors that programs do not provoke on purpose."""
    provoked = (rows["protocol"] == b"mysql") & np.isin(rows["code"], _PROVOKED_MYSQL)
    for begin in _PROVOKED:
        provoked |= (rows["protocol"] == b"postgresql") & np.char.startswith(rows["code"], begin)
    return np.asarray(errors(rows) & ~provoked)


def error_name(protocol: str, code: str) -> str:
    """An error's code for display."""
    return f"{_CALLED[protocol]} {code}" if protocol in _CALLED and code != "error" else code


@dataclass(frozen=True)
class FailedHop:
    """A server that was called, and how the calls failed. how: answered (with errors: code, protocol), refused
    (connects: errno), reset, closed (without an answer), given_up, or waited (calls of a process that was itself given
    up on).
    raw: ip:port as in rows; pids: of its processes, the latest first.

    by: its caller, for display; empty for the first server of an episode about answers. n: number of failures.
    users: uids of the programs that report them; only_user: the only uid of the whole chain, if it is neither root nor
    the server's.
    """

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
    users: frozenset[int] = frozenset()
    only_user: int | None = None

    @property
    def name(self) -> str:
        return peer(self.raw)

    @property
    def where(self) -> str:
        return place(self.name, self.raw, self.netns)

    @property
    def who(self) -> str:
        return f"{process(self.comm, self.pids[0])} at {self.name}" if self.pids else f"the server at {self.name}"

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.pids[0], self.comm, self.name) if self.pids else Culprit(object=self.name)

    @property
    def error_text(self) -> str:
        return error_name(self.protocol, self.code)

    @property
    def self_explanatory(self) -> bool:
        """Whether its error names the cause."""
        return self.code in (*LIMITS, *ONLY_READS, *UNREADY)

    @property
    def limited(self) -> bool:
        """Whether a limiter of the server refused the requests."""
        return (self.protocol, self.code) == ("http", "429")

    @property
    def requested_by(self) -> Words:
        """The end of a sentence: the caller, and the only user that reports it."""
        requested_by = render(" from {by}", by=self.by) if self.by else ""
        if self.only_user is None:
            return requested_by
        return render("{asked}, reported only by programs of user {uid}", asked=requested_by, uid=str(self.only_user))

    def capped(self, score: float) -> float:
        """Limits the score of a verdict that is based on its answers."""
        return score if self.only_user is None else min(score, _ONE_USER_SCORE)

    def evidence(self) -> tuple[Evidence, ...]:
        if self.how == "answered":
            return (
                item(
                    "service_answer", f"{self.error_text} answers", self.n, "", column="count", keys={"peer": self.name}
                ),
            )
        if self.how == "refused":
            return (
                item(
                    "tcp_connect", "failed connects", self.n, "", keys={"peer": self.name, "errno": self.errno or None}
                ),
            )
        if self.how == "reset":
            return (item("tcp_reset", "connections reset", self.n, "", keys={"peer": self.name}),)
        if self.how == "closed":
            return (
                item(
                    "tcp_close",
                    "connections closed without an answer",
                    self.n,
                    "",
                    column="bytes_in",
                    keys={"peer": self.name},
                ),
            )
        if self.how == "waited":
            return (
                item(
                    "slow_syscall",
                    "calls that waited for the server",
                    self.n,
                    "",
                    column="duration_ns",
                    keys={"peer": self.name},
                ),
            )
        return (item("tcp_close", "requests given up", self.n, "", column="waited_ns", keys={"peer": self.name}),)


def is_about_answers(episode: Episode) -> bool:
    """Whether it is about a server's answers: its key is (network namespace, ip:port)."""
    return len(episode.key) == 2 and isinstance(episode.key[0], int)


def chain(episode: Episode, view: View) -> list[FailedHop]:
    """From the server of the episode, or the one that answered its process with errors, to the one where the errors
    begin. Empty if there is none.
    """
    return view.once(_chain, episode) if is_about_answers(episode) or episode.pid is not None else []


def instances(episode: Episode, view: View) -> list[Episode]:
    """The episode as seen by each process of this host that serves where the errors begin. It is used to look up what
    is known of such a process.
    """
    return view.once(_instances, episode) if is_about_answers(episode) else []


def _chain(episode: Episode, view: View) -> list[FailedHop]:
    first = (_of_server if is_about_answers(episode) else _of_client)(episode, view)
    if first is None:
        return []
    found = [_served(first, view, episode)]
    while len(found) < _HOPS and found[-1].how != "refused" and found[-1].pids and not found[-1].self_explanatory:
        step = (_asks if found[-1].how in ("answered", "closed", "reset") else _waits)(found[-1], episode, view)
        if step is None or step.raw in {one.raw for one in found}:
            break
        found.append(_served(replace(step, by=found[-1].who), view, episode))
    found[-1] = replace(found[-1], only_user=_alone(found, view, episode))
    return found


def _of_server(episode: Episode, view: View) -> FailedHop:
    netns, raw = episode.key
    assert isinstance(netns, int)
    assert isinstance(raw, bytes)
    rows, before = (in_netns(to_peer(part, raw), netns) for part in _both(view, episode, "service_answer"))
    return _most_frequent_error(rows, before, raw, netns, episode.words) or FailedHop(raw, netns, "answered", 0)


def _of_client(episode: Episode, view: View) -> FailedHop | None:
    assert episode.pid is not None
    found = _answers(*_both(view, episode, "service_answer", (episode.pid,)), _OWN_SHARE)
    return found and replace(found, by=process(episode.comm, episode.pid))


def _alone(found: list[FailedHop], view: View, episode: Episode) -> int | None:
    users = frozenset[int]().union(*(one.users for one in found))
    if len(users) != 1 or min(users) <= 0:
        return None
    served = _of(
        view.rings["service_latency"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND), found[-1].pids
    )
    return None if users & set(served["uid"].tolist()) else min(users)


def _both(
    view: View, episode: Episode, table: str, pids: tuple[int, ...] = (), after_ns: int = _SLACK_NS
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of that table, of these processes if any: during the episode, and before it."""
    ring, begun_ns = view.rings[table], episode.start_ns - _SLACK_NS
    parts = ring.between(begun_ns, episode.end_ns + after_ns), ring.between(episode.start_ns - _BEFORE_NS, begun_ns - 1)
    return (_of(parts[0], pids), _of(parts[1], pids)) if pids else parts


def _counts(rows: np.ndarray) -> Counter[tuple[bytes, bytes]]:
    counts: Counter[tuple[bytes, bytes]] = Counter()
    for row in rows[errors(rows)]:
        counts[row["protocol"], row["code"]] += max(int(row["count"]), 1)
    return counts


def _most_frequent_error(
    rows: np.ndarray, before: np.ndarray, raw: bytes, netns: int | None, reported: str = ""
) -> FailedHop | None:
    """The reported error, or else the one with most occurrences beyond the usual number."""
    counts, usually = _counts(rows), _counts(before)
    ratio = max(int(rows["count"].sum()), 1) / max(int(before["count"].sum()), 1)
    if not counts:
        return None
    candidates = [entry for entry in counts.items() if error_name(*map(text, entry[0])) == reported] or counts.items()
    (protocol, code), n = max(candidates, key=lambda entry: (entry[1] - ratio * usually[entry[0]], entry[0]))
    users = frozenset(rows["uid"][(rows["protocol"] == protocol) & (rows["code"] == code)].tolist())
    return FailedHop(raw, netns, "answered", n, protocol=text(protocol), code=text(code), users=users)


def _served(hop: FailedHop, view: View, episode: Episode) -> FailedHop:
    served = view.servers.of_late(hop.raw, hop.netns, view.has_address(hop.raw, hop.netns, episode))
    return replace(hop, pids=tuple(pid for _, pid in served), comm=served[0][0]) if served else hop


def _asks(server: FailedHop, episode: Episode, view: View) -> FailedHop | None:
    """The failed requests of a server's processes to others, if they are unusual."""
    connects, closes, resets = (
        _both(view, episode, table, server.pids) for table in ("tcp_connect", "tcp_close", "tcp_reset")
    )
    found = [_answers(*_both(view, episode, "service_answer", server.pids))]
    failed, before = (rows[rows["result"] == _FAILED] for rows in connects)
    most = _unusual(failed, before, episode)
    if most is not None and most[2] >= _LEAST:
        why = Counter(to_peer(failed, most[0])["errno"].tolist()).most_common(1)[0][0]
        found.insert(0, FailedHop(*most[:2], "refused", most[2], errno=max(why, 0)))
    unanswered = _unusual(_unanswered(closes[0]), _unanswered(closes[1]), episode)
    if unanswered is not None and unanswered[2] >= _LEAST:
        found.append(FailedHop(*unanswered[:2], "closed", unanswered[2]))
    received, then = (pick(r, (r["direction"] == _RECEIVED) & (r["role"] != _SERVER)) for r in resets)
    reset = _unusual(received, then, episode)
    if reset is not None:
        n = reset[2] - len(to_peer(failed, reset[0]))  # a refused connect is a reset, too
        found += [FailedHop(*reset[:2], "reset", n)] if n >= _LEAST else []
    now, then = (given_up(*parts) for parts in zip(closes, connects, strict=True))
    given = _unusual(now, then, episode)
    if given is not None:
        found.append(FailedHop(*given[:2], "given_up", given[2]))
    return max((one for one in found if one is not None), key=lambda one: one.n, default=None)


def _unanswered(closes: np.ndarray) -> np.ndarray:
    """Connections of clients on which a request was sent and nothing came back, without a wait that was given up."""
    sent = (closes["role"] == _CLIENT) & (closes["bytes_in"] == 0) & (closes["bytes_out"] > 0)
    return pick(closes, sent & ~(closes["waited_ns"] >= LEAST_NS))


def _answers(rows: np.ndarray, before: np.ndarray, beyond: float = _SHARE) -> FailedHop | None:
    """Among the servers that a process called, the one with most errors, by more than ``beyond`` the usual share."""
    both = np.concatenate([rows, before])
    if not len(rows):
        return None
    first, group = groups([both["netns"], both["peer"]])
    n, bad = both["count"].clip(0), both["count"].clip(0) * errors(both)
    now_group, before_group = group[: len(rows)], group[len(rows) :]
    total, failed = (np.bincount(now_group, part[: len(rows)], len(first)) for part in (n, bad))
    total_before, failed_before = (np.bincount(before_group, part[len(rows) :], len(first)) for part in (n, bad))
    share = failed_before / np.maximum(total_before, 1)
    more = np.where((failed >= _LEAST) & (failed / np.maximum(total, 1) >= share + beyond), failed - share * total, 0.0)
    top = int(np.argmax(more))
    if more[top] <= 0:
        return None
    raw, netns = _end(both[first[top]])
    return _most_frequent_error(rows[now_group == top], before[before_group == top], raw, netns)


def _unusual(
    rows: np.ndarray, before: np.ndarray, episode: Episode, weigh: str = ""
) -> tuple[bytes, int | None, int] | None:
    """(peer, network namespace, number of rows) of the peer with most rows, or the largest sum of that column, among
    those with several times the usual amount.
    """
    if not len(rows):
        return None
    first, group = groups([np.concatenate([rows[name], before[name]]) for name in ("netns", "peer")])
    now_group, before_group = group[: len(rows)], group[len(rows) :]
    amount, usual = (
        np.bincount(g, part[weigh] if weigh else None, len(first))
        for g, part in ((now_group, rows), (before_group, before))
    )
    lasted = (episode.end_ns - episode.start_ns + 2 * _SLACK_NS) / (_BEFORE_NS - _SLACK_NS)
    amount = np.where(amount > _TIMES * lasted * usual, amount, 0)
    top = int(np.argmax(amount))
    return (*_end(rows[first[top]]), int(np.bincount(now_group)[top])) if amount[top] > 0 else None


def _waits(server: FailedHop, episode: Episode, view: View) -> FailedHop | None:
    """The server that this one waited for while it was given up on: the connected peer of the calls that waited
    longest, and longer than usual.
    """
    calls = _both(view, episode, "slow_syscall", server.pids, 2 * SECOND)
    talks = _of(view.rings["tcp_rtt"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND), server.pids)
    talks = talks[talks["role"] != _SERVER]
    parts = []
    for rows in calls:
        waited = (rows["kind"] == _WAITING) & (rows["peer"] != NO_PEER) & (rows["duration_ns"] >= _LONG_NS)
        ends = np.empty(int(waited.sum()), _CALL)
        ends["peer"], ends["duration_ns"], ends["netns"] = rows["peer"][waited], rows["duration_ns"][waited], NULL_I64
        parts.append(ends[np.isin(as_bytes(ends["peer"]), as_bytes(talks["peer"]))])
    most = _unusual(parts[0], parts[1], episode, "duration_ns")
    if most is None:
        return None
    raw, netns = _end(to_peer(talks, most[0])[-1])
    return FailedHop(raw, netns, "waited", most[2])


def _end(row: np.void) -> tuple[bytes, int | None]:
    return row["peer"].tobytes(), int(row["netns"]) if known(row["netns"]) else None


def _of(rows: np.ndarray, pids: tuple[int, ...]) -> np.ndarray:
    return pick(rows, np.isin(rows["pid"], pids[:_PIDS]))


def _instances(episode: Episode, view: View) -> list[Episode]:
    end = chain(episode, view)[-1]
    talks = view.rings["tcp_rtt"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND)
    found = []
    for pid in end.pids:
        mine = talks[talks["pid"] == pid]
        if len(mine):
            tick, comm = int(mine["proc_start_ns"][-1]) // 10_000_000, text(mine["comm"][-1])
            found.append(replace(episode, pid=pid, start_tick=tick, comm=comm, ranked=None))
    return found
