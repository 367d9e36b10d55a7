"""Queues of an etcd cluster (3.4 and later): entries that a member has not applied, proposals that wait for a decision,
events that wait for a watcher, and keys that a copy in another cluster lacks.

Each member that the setting names is asked for its status (JSON gateway) and its metrics; one that does not answer is
asked again after a while, and does not delay the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys
from agent.common.fairness import UpperBound
from agent.common.http_get import HttpDown
from agent.common.settings import private_text, setting
from agent.errors import USAGE, AgentError
from agent.queues.catalogue import Broker
from agent.queues.etcd_copies import MAX_KEYS, Comparison, TooManyKeys
from agent.queues.etcd_gateway import EtcdMember, MemberStatus, NotEtcd
from agent.queues.etcd_leases import NAME as LEASES
from agent.queues.etcd_leases import Leases
from agent.queues.http_server import HttpServer, HttpUrl, http_url, names_of
from agent.queues.prometheus_text import NotPrometheus
from agent.queues.queue import Row
from agent.queues.redis_reading import shown
from agent.queues.server_section import BadUrl
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue, elsewhere

TIMEOUT_S = 0.8  # of a poll, with all its requests
_MEMBER_S = 0.3  # of it, for one member
MAX_MEMBERS = 9
#: A member that does not answer is asked again after this time, if others do; a refused login, too.
RETRY_NS = 5_000_000_000
SELDOM_NS = 10_000_000_000  # names of the members
#: How long a reason names a change of the leader, and a compaction.
_NEW_LEADER_NS = _COMPACTED_NS = 60_000_000_000
#: Comparing a prefix takes at most one part in so many of the time, if it takes longer than _CHEAP_S.
_PART, _CHEAP_S = 20, 0.02
#: A database is nearly full at this part of its quota, as in etcd's own alert rules.
_NEARLY_FULL = 0.95
_AGES = ("lag_s", "lag_error_s", "lag_basis", "oldest_undelivered_s", "lag_at_least")
#: For docs/limits.md.
BOUNDS = (UpperBound("queues", "keys of an etcd prefix", MAX_KEYS, "its copy is not compared", "`queue_lag.reason`"),)
_EXAMPLE = "http://host:2379,host2:2379"
_FORM = "http://[user:password@]host:2379,host2:2379?prefix=/config/&copy=http://host3:2379"


@dataclass(frozen=True)
class EtcdCopy:
    """A cluster with copies of the prefixes, under ``prefix`` if that is not the same."""

    url: HttpUrl
    prefix: str


def _copy(given: str) -> EtcdCopy:
    parts = urlsplit(given)
    path = unquote(parts.path)
    found = http_url(parts._replace(path="").geturl(), "etcd", _EXAMPLE, 2379, {})
    if found["user"] or found["password"]:
        raise BadUrl("its copy has a login: both clusters get the same one")
    return EtcdCopy(HttpUrl(**found), path if path.strip("/") else "")


@dataclass(frozen=True)
class EtcdUrl(HttpUrl):
    """``http[s]://[user:password@]host[:2379][,host2[:2379]...][?prefix=/a/,/b/&copy=http://host3:2379[/prefix/]]``.

    others: further members. copy: with the login of this one.
    """

    port: int = 2379
    others: tuple[HttpUrl, ...] = ()
    prefix: tuple[str, ...] = ()
    copy: EtcdCopy | None = None

    @classmethod
    def parse(cls, url: str) -> EtcdUrl:
        """Raises AgentError for an invalid URL; the message leaves the password out."""
        head, mark, query = url.partition("?")
        scheme, _, rest = head.partition("//")
        login, at, hosts = rest.rpartition("@")
        first, *others = hosts.split(",")
        options = {"prefix": names_of, "copy": _copy}
        found = http_url(f"{scheme}//{login}{at}{first}{mark}{query}", "etcd", _FORM, cls.port, options)
        prefixes, copy = found.get("prefix", ()), found.get("copy")
        if copy is not None and copy.prefix and len(prefixes) > 1:
            raise AgentError(
                "a URL of etcd in the configuration cannot be read",
                why="its copy has one prefix, to which several prefixes would be compared",
                remedy="write one URL for each prefix, with the prefix of its own copy",
                exit_code=USAGE,
            )
        more = tuple(HttpUrl(**http_url(f"{scheme}//{host}", "etcd", _FORM, cls.port, {})) for host in others)
        addresses = [(one["host"], one["port"]) for one in (found, *map(vars, more))]
        if len(more) >= MAX_MEMBERS or len({*addresses}) < len(addresses):
            raise AgentError(
                "a URL of etcd in the configuration cannot be read",
                why=f"it names more than {MAX_MEMBERS} members, or one of them twice",
                remedy="name each member once; of more members, those that vote",
                exit_code=USAGE,
            )
        return cls(**found, others=more)


@dataclass(frozen=True)
class EtcdCluster(HttpServer):
    """A cluster as a section of the settings."""

    TITLE = "etcd"

    url: EtcdUrl = setting("", private_text(_FORM, EtcdUrl.parse), "one or more of its members")
    password: Password = setting(Password(), password_keys("TICKSCOPE_ETCD_"))


class _Queue(NamedTuple):
    """destination and consumer group of a row."""

    destination: bytes
    group: bytes


@dataclass
class _Member:
    """What is kept of a member between polls. status, metrics: None if it did not answer; took_ns: until it did."""

    client: EtcdMember
    name: bytes = b""
    number: int = 0  # its id in the cluster, 0 before it answered
    cluster_id: int = 0  # as it answered last, 0 before it answered
    status: MemberStatus | None = None
    metrics: dict[str, int] | None = None
    took_ns: int = 0
    problem: HttpDown | None = None
    metrics_problem: str = ""
    not_before_ns: int = 0
    queues: set[_Queue] = field(default_factory=set)
    compacted: int | None = None  # up to this revision
    compacted_ns: int = 0  # of the last compaction that was seen while watchers were slow
    slow: tuple[int, int] = (0, 0)  # watchers, at the last two polls
    lacking: int = 0  # of them, at that compaction

    def ask(self, now_ns: int, deadline_s: float, alone: bool) -> None:
        """Its status, and then its metrics. alone: whether no other member waits for it. Raises nothing."""
        if now_ns < self.not_before_ns:
            return
        self.status = self.metrics = self.problem = None
        asked_ns = boot_ns()
        if not alone and not self.client.logs_in:
            deadline_s = min(deadline_s, time.monotonic() + _MEMBER_S)
        try:
            self.status = self.client.status(deadline_s)
            self.metrics_problem = ""
            self.metrics = self.client.metrics(deadline_s)
            self._see_compaction(self.metrics, now_ns)
        except HttpDown as error:
            if self.status is None:
                self.problem, self.not_before_ns = error, now_ns + RETRY_NS
            else:
                self.metrics_problem = f"its metrics: {error}"
        except NotPrometheus:
            self.metrics_problem = "its metrics are not of Prometheus's text format"
        except NotEtcd as error:
            self.client.close()
            self.problem = HttpDown(f"its answer is not that of etcd's JSON gateway: {error}")
        self.took_ns = boot_ns() - asked_ns

    def _see_compaction(self, metrics: dict[str, int], now_ns: int) -> None:
        """etcd cancels a watcher that lacks events which are compacted, and counts it nowhere."""
        self.slow = self.slow[1], metrics.get("slow_watchers", 0)
        before, self.compacted = self.compacted, metrics.get("compacted", 0)
        if before is not None and self.compacted > before and any(self.slow):
            self.compacted_ns, self.lacking = now_ns, max(self.slow)

    def compaction(self, now_ns: int) -> str:
        """What one of the last minute may have done to watchers."""
        ago_ns = now_ns - self.compacted_ns
        if not self.compacted_ns or ago_ns >= _COMPACTED_NS:
            return ""
        which = f"revision {self.compacted} was compacted {ago_ns / 1e9:.0f} s ago"
        slow = "1 watcher was" if self.lacking == 1 else f"{self.lacking} watchers were"
        return f"{which} while {slow} slow: etcd cancels a watcher that lacks older events"


class EtcdQueues(TimedQueue):
    """One etcd cluster. ``poll`` returns rows of each member and of each copy; ``down`` rows of members that do not
    answer.
    """

    def __init__(self, server: EtcdUrl | EtcdCluster, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server if isinstance(server, EtcdCluster) else EtcdCluster(server)
        url = self._server.url
        self.name = f"etcd {url.server}"
        self._timeout_s = timeout_s
        self._members = [_Member(EtcdMember(one, self._server), one.server.encode()) for one in (url, *url.others)]
        self._cluster_id = 0
        self._names: dict[int | str, str] = {}
        self._names_ns = 0
        self._leader = self._term = 0
        self._leader_ns = 0  # of the last election that was seen
        self._reelected = False  # whether the leader was the same one before it
        self._leases = Leases()
        self._due: ServerTimers | None = None
        self._leader_first = False  # whether it was asked before the others
        self._copy = None if url.copy is None else EtcdMember(url.copy.url, self._server)
        self._compared = [] if url.copy is None else [_Compared(one, url.copy) for one in url.prefix or ("",)]

    def poll(self) -> list[Row]:
        """Raises nothing, whatever the servers answer."""
        now_ns, deadline_s = boot_ns(), time.monotonic() + self._timeout_s
        # The leader first, and those that did not answer last.
        order = sorted(self._members, key=lambda one: (one.problem is not None, not self._leads(one)))
        if all(one.not_before_ns > now_ns and one.problem is not None for one in order):
            for one in order:
                if one.problem is not None and one.problem.failure != "login":
                    one.not_before_ns = 0
        for one in order:
            one.ask(now_ns, deadline_s, len(order) == 1)
        alive = self._see_cluster([one for one in self._members if one.status is not None], now_ns, deadline_s)
        self._leader_first = self._leads(order[0])
        rows = [row for one in self._members for row in self._rows(one, now_ns, deadline_s)]
        self._due = self._timers(alive, deadline_s) if alive else None
        if alive:
            source = self._source(alive)
            its = [compared.row(source.client, self._copy, now_ns, deadline_s) for compared in self._compared]
            rows += ({**row, "poll_ns": source.took_ns} for row in its)  # the copy may take longer
        else:
            rows += ({**_failed(self._members[0]), **compared.named} for compared in self._compared)
        if self._cluster_id:
            rows = [{"cluster": f"{self._cluster_id:x}", **row} for row in rows]
        return rows

    def timers(self) -> ServerTimers | None:
        return self._due

    def close(self) -> None:
        for one in self._members:
            one.client.close()
        if self._copy is not None:
            self._copy.close()

    def _leads(self, member: _Member) -> bool:
        """Whether it is the leader of this cluster."""
        status = member.status
        return status is not None and status.cluster_id == self._cluster_id and 0 < status.leader == status.member_id

    def _source(self, alive: list[_Member]) -> _Member:
        """The leader, as no other member has more revisions."""
        return next((one for one in alive if self._leads(one)), alive[0])

    def _timers(self, alive: list[_Member], deadline_s: float) -> ServerTimers:
        """Of the leader, which ends leases."""
        leader = next((one for one in alive if self._leads(one)), None)
        member = leader or alive[0]
        assert member.status is not None
        if not member.status.leader:
            found = [QueueTimer(LEASES, b"", "lease", unknown="no leader: leases do not end")]
        else:
            found = self._leases.timers(member.client, deadline_s)
        where = elsewhere(member.client.host)
        if leader is None:
            where = "the leader is not named in the setting, or does not answer: its clock is not known"
        return ServerTimers(found, member.status.version, where)

    def _see_cluster(self, alive: Sequence[_Member], now_ns: int, deadline_s: float) -> list[_Member]:
        """Returns the members of the cluster: the one to which most of those that answer belong; of two with as many,
        the one that was watched before. A member that was of another cluster all the time is not counted.
        """
        known = (0, self._cluster_id)
        ids = Counter(
            its
            for one in alive
            if one.status is not None and ((its := one.status.cluster_id) in known or one.cluster_id in known)
        )
        for one in alive:
            one.cluster_id = one.status.cluster_id if one.status is not None else one.cluster_id
        most = max(ids, key=lambda number: (ids[number], number == self._cluster_id), default=self._cluster_id)
        if most != self._cluster_id:  # restored from a snapshot
            self._cluster_id, self._leader, self._term = most, 0, 0
            self._names, self._names_ns = {}, 0
            for member in self._members:  # ids of the old cluster
                member.number = 0
        ours = []
        for one in alive:
            assert one.status is not None
            if one.status.cluster_id != self._cluster_id:
                one.number, one.name = 0, shown(one.client.name.encode())
                continue
            ours.append(one)
            # Of two members that know different leaders, the one with the higher term is right.
            if one.status.leader and one.status.term > self._term:
                if self._term:
                    self._leader_ns, self._reelected = now_ns, one.status.leader == self._leader
                self._leader, self._term = one.status.leader, one.status.term
            if now_ns >= self._names_ns or (self._names and one.status.member_id not in self._names):
                self._names_ns = now_ns + SELDOM_NS
                try:
                    self._names = one.client.members(min(deadline_s, time.monotonic() + _MEMBER_S))
                except HttpDown as error:
                    if not self._names and not error.status:  # it was not refused: the next one may answer
                        self._names_ns = 0
                except NotEtcd:
                    pass
            one.number = one.status.member_id
            one.name = shown((self._names.get(one.status.member_id) or f"{one.status.member_id:x}").encode())
        for one in self._members:
            if one.status is None and not one.queues:  # it never answered
                one.name = shown((self._names.get(one.client.name) or one.client.name).encode())
        return ours

    def _rows(self, member: _Member, now_ns: int, deadline_s: float) -> Iterator[Row]:
        common: dict[str, object] = {"peer": member.client.peer}
        status = member.status
        if status is None:
            yield from self._down(member, common)
            return
        if status.cluster_id != self._cluster_id:
            yield {**common, "destination": member.name, "reason": "it is of another cluster than the others"}
            return
        metrics = member.metrics or {}
        role = "cut off" if not status.leader else "primary" if self._leads(member) else "replica"
        common |= {
            "consumer_group": member.name,
            "poll_ns": member.took_ns,  # another member may take longer
            "server_role": role,
            "memory_bytes": metrics.get("memory_bytes"),
            "errors": ", ".join(f"{name} 1" for name in status.alarms),
        }
        raft, quota_bytes = self._raft(member, status, deadline_s), metrics.get("quota_bytes")
        if status.alarms:
            raft["reason"] = f"alarm {', '.join(status.alarms)}: writes are refused"
        elif quota_bytes and status.db_bytes > _NEARLY_FULL * quota_bytes:
            raft["reason"] = f"the database uses {100 * status.db_bytes // quota_bytes} % of its quota"
        elif now_ns - self._leader_ns < _NEW_LEADER_NS and self._leader_ns:
            ago_s = (now_ns - self._leader_ns) / 1e9
            what = "was elected anew" if self._reelected else "changed"
            raft["reason"] = f"the leader {what} {ago_s:.0f} s ago: the time to live of each lease began anew"
        rows = [{"destination": b"raft", **raft}, *_from_metrics(member, now_ns)]
        member.queues = {_Queue(one["destination"], member.name) for one in rows}
        for row in rows:
            yield {**common, **row}

    def _raft(self, member: _Member, status: MemberStatus, deadline_s: float) -> dict[str, Any]:
        """Entries that the leader had committed, and this member had not applied."""
        position: dict[str, Any] = {"position": status.applied, "acked": status.applied}
        if not status.leader:
            return {**position, "lag_messages": None, "exact": None, "inexact_reason": "no leader"}
        applied = status.applied
        if applied is None or status.committed is None:
            why = "its status lacks raftIndex or raftAppliedIndex: etcd before 3.4, or a proxy"
            return {**position, "lag_messages": None, "exact": None, "inexact_reason": why}
        leader = next((one for one in self._members if self._leads(one)), None)
        before = None if leader is None or leader.status is None else leader.status.committed
        if leader is member:
            lag = max(0, status.committed - applied)
            return {**position, "lag_messages": lag, "exact": True, "added": status.committed}
        if leader is None or before is None:
            why = "is not named in the setting, or does not answer" if leader is None else "reports no raftIndex"
            return {
                **position,
                "lag_messages": max(0, status.committed - applied),
                "exact": False,
                "inexact_reason": f"lower bound: the leader {why}",
            }
        try:  # what it had committed before and after this member answered
            after = leader.client.status(min(deadline_s, time.monotonic() + _MEMBER_S)).committed or before
        except (HttpDown, NotEtcd):
            return {**position, "lag_messages": None, "exact": None, "inexact_reason": "the leader did not answer"}
        least, most = (max(0, committed - applied) for committed in (before, after))
        if not self._leader_first:
            least = 0
        row = {**position, "lag_messages": max(least, most), "exact": least >= most, "added": after}
        if least < most:
            row |= {"lag_at_least": least, "inexact_reason": f"{most - least} entries came while it was asked"}
        return row

    def _down(self, member: _Member, common: dict[str, object]) -> Iterator[Row]:
        row = {**common, **_failed(member)}
        # Without any names, the list of members was refused or had no answer.
        if self._names and member.number and member.number not in self._names:
            row = {**common, "status": "gone", "reason": "the member was removed from the cluster"}
        for queue in sorted(member.queues) or [_Queue(b"raft", member.name)]:
            yield {**row, "destination": queue.destination, "consumer_group": queue.group}


def _failed(member: _Member) -> dict[str, object]:
    problem = member.problem or HttpDown("no answer in time", "no_answer")
    reason = f"etcd {member.client.name}: {problem}"
    return {"peer": member.client.peer, "status": "down", "reason": reason, "failure": problem.failure}


def _from_metrics(member: _Member, now_ns: int) -> Iterator[dict[str, Any]]:
    """Proposals that wait for the cluster's decision, and events that wait for watchers."""
    found = member.metrics
    if found is None:
        for name in sorted({one.destination for one in member.queues} - {b"raft"}) or [b"proposals"]:
            yield {"destination": name, "lag_messages": None, "inexact_reason": member.metrics_problem}
        return
    if "proposals" in found:
        yield {
            "destination": b"proposals",
            "lag_messages": found["proposals"],
            "exact": True,
            "position": found.get("committed"),
        }
    if "events" in found:
        slow = found.get("slow_watchers", 0)
        words = f"lower bound: {slow} slow watcher{'s lack' if slow > 1 else ' lacks'} more"
        compaction = member.compaction(now_ns)
        yield {
            **({"reason": compaction} if compaction else {}),
            "destination": b"watchers",
            "lag_messages": found["events"],
            "exact": not slow,
            "inexact_reason": words if slow else "",
            "consumers": found.get("watchers"),
            "position": found.get("sent"),
        }


class _Compared:
    """A prefix and its copy, which is compared less often if that takes long."""

    def __init__(self, prefix: str, copy: EtcdCopy) -> None:
        copied = copy.prefix or prefix
        self.named: dict[str, Any] = {
            "destination": shown(prefix.encode() or b"all keys"),
            "consumer_group": shown(f"copy {copy.url.server}{copied if copied != prefix else ''}".encode()),
        }
        self._comparison = Comparison.of(prefix.encode(), copied.encode())
        self._next_ns = self._as_of_ns = 0
        self._last: dict[str, Any] = {}

    def row(self, source: EtcdMember, copy: EtcdMember | None, now_ns: int, deadline_s: float) -> Row:
        assert copy is not None
        if now_ns < self._next_ns:
            row = {**self.named, "peer": source.peer, **self._last}
            if row.get("lag_messages") is not None:  # that many at that time; how old they are now is not known
                row |= {"exact": False, "inexact_reason": f"as of {(now_ns - self._as_of_ns) / 1e9:.1f} s ago"}
                row = {name: it for name, it in row.items() if name not in _AGES}
            return row
        began_s, self._as_of_ns = time.monotonic(), now_ns
        try:
            self._last = self._compare(source, copy, deadline_s)
        except HttpDown as error:
            self._last = {"lag_messages": None, "inexact_reason": f"not compared: {error}"}
            self._next_ns = now_ns + RETRY_NS
        except NotEtcd as error:
            self._last = {"lag_messages": None, "inexact_reason": f"an answer is not that of etcd's gateway: {error}"}
        except TooManyKeys:
            self._last = {"lag_messages": None, "inexact_reason": f"more than {MAX_KEYS:,} keys are not compared"}
            self._next_ns = now_ns + 60 * 10**9
        took_s = time.monotonic() - began_s
        if took_s > _CHEAP_S and self._last["lag_messages"] is not None:  # the first reading is a page a poll
            self._next_ns = max(self._next_ns, now_ns + int(_PART * took_s * 1e9))
        return {**self.named, "peer": source.peer, **self._last}

    def _compare(self, source: EtcdMember, copy: EtcdMember, deadline_s: float) -> dict[str, Any]:
        comparison = self._comparison
        found = comparison.update(source, copy, deadline_s)
        if found is None:
            sides = comparison.source, comparison.copy
            read = " and ".join("all" if one.read is None else f"{one.read} of {one.count}" for one in sides)
            return {"lag_messages": None, "inexact_reason": f"reading: {read} keys so far"}
        notes = []
        row: dict[str, Any] = {"lag_messages": found.keys, "exact": found.keys == found.least}
        row["position"] = comparison.changes
        if found.keys != found.least:
            row["lag_at_least"] = found.least
            notes.append(f"keys that changed during the poll: {found.keys - found.least}")
        if found.keys == 0:
            row |= {"lag_s": 0.0, "lag_error_s": 0.0}
        elif found.age is not None:
            row |= found.age.columns()
            if not found.age.close:
                notes.append(f"age: {found.age.text()}")
        if found.extra:
            notes.append(f"keys that only the copy has: {found.extra}")
        return {**row, "inexact_reason": "; ".join(notes)}


BROKER = Broker(
    "etcd",
    "etcd",
    "entries that members have not applied, waiting proposals, watchers' backlog, and copies of a prefix",
    _FORM,
    "one or more of its members; prefix and copy: compare the keys with those of another cluster",
    EtcdUrl.parse,
    EtcdQueues,
    EtcdCluster,
)
