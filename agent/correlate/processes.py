"""Processes that others depend on (limiters, servers, clients of watched brokers), and their stops and terminations.
For other processes that talk all the time, their stops; for all workers, terminations from outside
(agent/correlate/external_ends.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from agent.common.copies import only, pick
from agent.common.fairness import earlier
from agent.common.recent import Recent
from agent.correlate import external_ends, terminations
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, among, known, of_codes
from agent.correlate.series import SECONDS
from agent.correlate.terminations import ENDS, RESUMES, STOPS, Termination
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

_SERVER = TABLES["tcp_rtt"].code("role", "server")
_BLOCKED = TABLES["syscall_latency"].code("basis", "blocked")
_ACCEPT = TABLES["socket_queue"].code("kind", "accept")
#: Columns that a symptom of processes reads.
READS = {
    **terminations.READS,
    "limiter_decision": ("cgroup_id",),
    "tcp_rtt": ("role", "peer", "cgroup_id"),
    "socket_queue": ("kind", "cgroup_id"),
    "queue_lag": ("peer",),
    "syscall_latency": ("basis", "cgroup_id"),
}
_RECENT_S = 60  # how long a process matters after it was last seen at work
_WHO = ("pid", "proc_start_ns", "cgroup_id")
_BUSY_S = 20
_GONE_S = 6  # a worker and its parent that end within this time end together
_RETURN_NS = 2 * SECOND  # a process that came back at once is seen at work within this time
_KEPT_NS = 30 * SECOND
_MOST_EVENTS, _MOST_ENDS, _MOST_BROKERS = 1024, 64, 64
_KINDS = TABLES["process_event"].by_name["kind"].names
_STOPPED, _FROZEN = _KINDS.index("stopped"), _KINDS.index("frozen")
_END_KINDS = of_codes(_KINDS.index(kind) for kind in ENDS)
#: For each user but root: events of a second, and simultaneous subjects.
_A_USERS_EVENTS, _A_USERS_SUBJECTS = 64, 16


@dataclass
class Relevant:
    """A process that matters. seen_s: when it was last seen at work; seconds: number of seconds at work; needed:
    whether others depend on it; talks: seconds with a connection.
    """

    tick: int
    comm: str
    cgroup: int
    seen_s: int
    seconds: int = 1
    needed: bool = False
    talks: int = 0
    talked_s: int = -1

    @property
    def matters(self) -> bool:
        """Whether a stop of it matters. It does, too, for a process that only calls others, and does so all the
        time.
        """
        return self.needed or self.talks >= _BUSY_S

    def hit(self, row: np.void) -> bool:
        """Whether it is a worker, and the event came from outside."""
        return (
            self.seconds >= _BUSY_S
            and not external_ends.shell(row)
            and (external_ends.stops(row) or external_ends.ends(row))
        )


class ProcessWatch(Watch):
    """One subject is one process, during an event."""

    metrics = ("happens",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.members: dict[int, Relevant] = {}
        self.now: dict[int, Termination] = {}  # by slot: a stop that lasts or has just ended, or a termination
        self._stops: dict[int, Termination] = {}  # by process
        self._ended: list[Termination] = []  # terminations that may turn out to be restarts
        self._gone: list[np.ndarray] = []  # terminated processes of each of the last seconds
        self._brokers = Recent[bytes, int](_MOST_BROKERS)
        self._until_ns = 0
        self._subjects: dict[tuple[object, ...], tuple[int | None, int]] = {}  # (owner, last second)
        self._ends: dict[tuple[int, int], np.void] = {}  # the last terminations, by time and process

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self._until_ns = (second + 1) * SECOND
        self._learn(second, rows)
        events = terminations.of_namespace(rows["process_event"])
        happened = self._happen(second, self._chosen(events))
        self._gone = [*self._gone, _gone(events)[-_MOST_EVENTS:]][-_GONE_S:]
        self._ended += [termination for termination in happened if not termination.stop]
        due = [end for end in self._ended if self._until_ns - end.from_ns >= _RETURN_NS]
        self._ended = [end for end in self._ended if end not in due]
        if due:
            every = np.concatenate(self._gone)
            left, killers = set(every[:, 0].tolist()), Counter(every[:, 1].tolist())
            due = [
                e for e in due if e.needed or not (e.parent in left or (e.parent == 1 and killers[e.sender_pid] > 1))
            ]
        lasting = [termination for termination in happened if termination.stop] + list(self._stops.values())
        self.now = {}
        for termination in (*lasting, *(end for end in due if end.lives > 1 or end.abrupt or not self._back(end))):
            slot = self._slot(termination, second)
            other = self.now.get(slot)
            if slot >= 0 and (other is None or termination.lasted(self._until_ns) >= other.lasted(self._until_ns)):
                self.now[slot] = termination
        slots = np.array(sorted(self.now), np.int64)
        if len(slots):
            self.series.put(second, slots, happens=np.ones(len(slots)))
        return slots

    def _slot(self, termination: Termination, second: int) -> int:
        """Limits the subjects of a user, so that one user's processes do not crowd out those of others."""
        key = (termination.pid, termination.tick, termination.stop)
        self._subjects = {k: (uid, last) for k, (uid, last) in self._subjects.items() if last > second - SECONDS}
        of_user = sum(uid == termination.uid for uid, _ in self._subjects.values())
        if termination.uid and key not in self._subjects and of_user >= _A_USERS_SUBJECTS:
            self.series.dropped += 1
            return -1
        self._subjects[key] = termination.uid, second
        return self.series.slot(key, second)

    def _chosen(self, events: np.ndarray) -> np.ndarray:
        """Events of processes that matter, or terminations of their programs; of each user but root the last ones.

        A stop without a signal, or of a process whose cgroup is frozen, is older than the agent: it explains who is
        kept waiting, and is no symptom by itself.
        """
        before = (events["kind"] == _STOPPED) & ~known(events["signal"])
        before |= (events["kind"] == _FROZEN) & known(events["pid"])
        events = only(events, ~before)
        mine, whole = among(events["pid"], self.members), ~known(events["pid"])
        if whole.any():
            mine |= whole & among(events["cgroup_id"], (m.cgroup for m in self.members.values()))
        ends = _END_KINDS[events["kind"]]
        ended = {*events["comm"][mine & ends].tolist(), *(end["comm"] for end in self._ends.values())}
        events = pick(events, mine | (ends & among(events["comm"], ended)))
        if not len(events):
            return events
        later = earlier(events["uid"][::-1])[::-1]
        return np.asarray(events[(later < _A_USERS_EVENTS) | (events["uid"] <= 0)][-_MOST_EVENTS:])

    def _back(self, end: Termination) -> bool:
        """Whether its program was back so soon that no client need have been impacted, as after an intended restart."""
        begun = [m.tick * 10_000_000 for m in self.members.values() if (m.comm, m.cgroup) == (end.comm, end.cgroup)]
        return any(-10_000_000 <= start - end.from_ns < self.config.stopped_ns for start in begun)

    def _happen(self, second: int, events: np.ndarray) -> list[Termination]:
        """Takes a second's events; returns the stops and terminations that they complete."""
        self._ends = {at: row for at, row in self._ends.items() if at[0] >= second * SECOND - _KEPT_NS}
        found: list[Termination] = []
        for row in self._of_members(events):
            kind, t_ns = terminations.kind_of(row), int(row["t_ns"])
            for pid in self._of(row):
                member = self.members.get(pid)
                if (
                    kind in STOPS
                    and member is not None
                    and pid not in self._stops
                    and (member.matters or member.hit(row))
                ):
                    stop = terminations.of_row(row, pid, member.tick, member.comm, member.cgroup)
                    self._stops[pid] = replace(stop, needed=member.matters)
                elif kind in (*RESUMES, *ENDS) and pid in self._stops:
                    found.append(replace(self._stops.pop(pid), to_ns=t_ns))
                if kind in ENDS and external_ends.brief(row):
                    pass
                elif kind in ENDS and (member is None or member.needed):
                    before = np.array([*self._ends.values()], events.dtype)
                    tick = int(row["proc_start_ns"]) // 10_000_000
                    end = terminations.of_row(row, pid, tick, text(row["comm"]), int(row["cgroup_id"]))
                    found.append(replace(terminations.chained(end, before), abrupt=external_ends.abrupt(row)))
                    self._ends[t_ns, pid] = row
                    of_user = [at for at, one in self._ends.items() if one["uid"] == row["uid"]]
                    for at in of_user[:-_MOST_ENDS]:
                        del self._ends[at]
                elif (
                    kind in ENDS and member is not None and member.hit(row)
                ):  # other terminations of its program are no successors
                    end = terminations.of_row(row, pid, member.tick, member.comm, member.cgroup)
                    found.append(replace(end, parent=int(row["parent_pid"]), needed=False, abrupt=True))
                if kind in ENDS:
                    self.members.pop(pid, None)
        return found

    def _of_members(self, events: np.ndarray) -> np.ndarray:
        """Events that may concern a process that matters; most events of a host do not."""
        theirs = among(events["pid"], self.members) | ~known(events["pid"])
        ended = {*events["comm"][theirs].tolist(), *(end["comm"] for end in self._ends.values())}
        return pick(events, theirs | among(events["comm"], ended))

    def _of(self, row: np.void) -> list[int]:
        """The processes that matter and that a row is about; for terminations also the successor of such a process."""
        pid, tick = int(row["pid"]), int(row["proc_start_ns"]) // 10_000_000
        if not known(row["pid"]):
            return [one for one, m in self.members.items() if m.cgroup == int(row["cgroup_id"])]
        member = self.members.get(pid)
        if member is not None and member.tick == tick:
            return [pid]
        replaced = terminations.kind_of(row) in ENDS and any(
            (end["comm"], end["uid"]) == (row["comm"], row["uid"]) for end in self._ends.values()
        )
        return [pid] if replaced else []

    def _learn(self, second: int, rows: OfSecond) -> None:
        """Learns which processes are at work."""
        for raw in sorted(set(rows["queue_lag"]["peer"].tolist())):
            self._brokers[raw] = second
        for table, its in rows.items():
            if table == "limiter_decision":
                self._at_work(second, its, its["pid"] > 0, needed=True)
            elif table == "socket_queue":
                self._at_work(second, its, its["kind"] == _ACCEPT, needed=True)
            elif table == "tcp_rtt":
                mask = (its["role"] == _SERVER) | among(its["peer"], self._brokers)
                self._at_work(second, its, mask, needed=True)
                self._at_work(second, its, ~mask, needed=False)
            elif table == "syscall_latency":
                self._at_work(second, its, its["basis"] == _BLOCKED, needed=False, talks=False)
        if second % 16 == 0:
            self.members = {pid: m for pid, m in self.members.items() if second - m.seen_s <= _RECENT_S}

    def _at_work(self, second: int, rows: np.ndarray, which: np.ndarray, needed: bool, talks: bool = True) -> None:
        which = which.nonzero()[0]
        pids, first = np.unique(rows["pid"][which], return_index=True)
        if not len(pids):
            return
        some = pick(rows, which[first[pids > 0]])
        # workers without connections do not take the places of servers
        most = self.config.servers if talks else self.config.servers // 2
        members = self.members
        for n, (pid, start_ns, cgroup) in enumerate(zip(*(some[c].tolist() for c in _WHO), strict=True)):
            tick, member = start_ns // 10_000_000, members.get(pid)
            if member is None or member.tick != tick:
                if member is None and len(members) >= most:
                    continue
                member = members[pid] = Relevant(tick, text(some["comm"][n]), cgroup, second, 0)
            member.seconds += member.seen_s < second or not member.seconds
            member.talks += talks and member.talked_s < second
            member.seen_s, member.needed = second, member.needed or needed
            if talks:
                member.talked_s = second
            if cgroup > 0:
                member.cgroup = cgroup

    def describe(self, symptom: str, slot: int) -> Episode:
        termination = self.now[slot]
        key = (termination.pid, termination.tick, termination.cgroup)
        subject, scope = process(termination.comm, termination.pid), f"{termination.pid}/{termination.tick}"
        episode = Episode(symptom, key, slot, subject, scope, termination.from_ns, metric="happens")
        episode.pid, episode.start_tick, episode.comm = termination.pid, termination.tick, termination.comm
        return episode


def _gone(events: np.ndarray) -> np.ndarray:
    """(process, sender of the signal) of terminated processes in our PID namespace, shape (n, 2)."""
    ended = pick(events, _END_KINDS[events["kind"]] & known(events["pid"]))
    return np.stack([ended["pid"], ended["sender_pid"]], axis=1)
