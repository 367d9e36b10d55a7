"""Symptoms of queues: consumer groups that fall behind or stop."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from agent.common.copies import only, pick
from agent.correlate.episode import UNTAKEN, Episode
from agent.correlate.redeliveries import Redeliveries
from agent.correlate.rows import OfSecond, columns_of, groups, known
from agent.correlate.series import SECONDS
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import peer, text

#: Columns that a symptom of queues reads.
READS = {
    "queue_lag": (
        "system",
        "cluster",
        "destination",
        "partition",
        "consumer_group",
        "lag_messages",
        "lag_s",
        "oldest_undelivered_s",
        "oldest_pending_s",
        "pending",
        "consumers",
        "in_per_s",
        "out_per_s",
        "status",
        "peer",
        "poll_ns",
        "holder",
        "idle_consumer",
        "idle_s",
        "errors",
        "redelivered",
        "rebalances",
        "group_state",
        "retention_left_s",
        "removed",
    )
}
#: A poll that took longer, and so many times the usual time, depends more on the server than on its queues, and for
#: so many seconds after it, while the backlog is processed.
_WELL_S, _LONGER, _AFTER_S = 0.2, 2.0, 2
#: Metrics of delivered messages: other consumers may continue.
DELIVERED = ("pending_s", "idle_s")
_CAUGHT_UP = 1.5  # times the usual rate, above which a group processes a backlog
_EVER_S = 3e9  # 95 years
#: Statuses of a group that makes no progress.
_STILL = (b"stalled", b"stopped")
_CARRY_S = 10  # a poll's answer is valid for this long, so that slow polling does not look like recovery


def _nan(values: np.ndarray) -> np.ndarray:
    """Integers as floats, unknown as NaN."""
    return np.where(known(values), values, np.nan) if values.dtype.kind == "i" else values.astype(np.float64)


def _age(seconds: np.ndarray) -> np.ndarray:
    """Impossible ages, a broker's mistake, are unknown."""
    return np.where(np.abs(seconds) < _EVER_S, seconds, np.nan)


def _took_s(polls: np.ndarray) -> np.ndarray:
    """Duration of the poll, 0 if it is not known."""
    return np.asarray(np.where(known(polls["poll_ns"]), polls["poll_ns"] / SECOND, 0.0))


#: What names a queue. Where the cluster is not known, the server's address stands for it.
_NAMES = ("system", "destination", "partition", "consumer_group", "peer", "cluster")


def _key(*its: bytes) -> tuple[object, ...]:
    """The subject of a queue. its: as ``_NAMES``."""
    *names, raw, cluster = its
    return (*map(text, names), cluster or raw)


def _by_queue(polls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``groups`` of the polls of one queue."""
    server = np.where(polls["cluster"] == b"", polls["peer"], np.zeros(1, polls["peer"].dtype))
    return groups([server, *(polls[name] for name in _NAMES if name != "peer")])


def _servers(polls: np.ndarray) -> list[tuple[bytes, bytes]]:
    return list(zip(polls["system"].tolist(), polls["peer"].tolist(), strict=True))


class Removal(NamedTuple):
    """Messages that were removed unread between two polls, whose times are CLOCK_BOOTTIME ns."""

    from_ns: int
    to_ns: int
    messages: int


class QueueWatch(Watch):
    """One subject is one consumer group of one destination (and partition) of a cluster, whichever server answers."""

    #: gone: 1 while the queue is deleted, 2 while its server's clients are refused for that.
    #: rebalances: so far; unstable: 1 while the group is rebalancing; left_s: until the first unread message may be
    #: deleted; poll_s: duration of the poll, by which its ages may be too long.
    metrics = (
        *("age_s", "pending_s", "lag", "pending", "in", "out", "consumers", "stuck", "at_s", "idle_s", "gone"),
        *("rebalances", "unstable", "left_s", "poll_s"),
    )

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str, str, str, bytes]] = {}  # the last part: the server that answered last
        self._cluster: dict[int, str] = {}
        self.began = -1  # the first second of all
        self.known_since: dict[int, int] = {}  # by slot, its first second
        self.holders: dict[int, str] = {}  # the consumer with the oldest delivered message, as of the last poll
        self.idle: dict[int, str] = {}  # and the consumer idle for longest
        self.polled = np.empty(0, np.int64)  # the slots that were polled in the second
        self.fresh = self.polled  # those of a healthy server: waits of their messages say something of their consumers
        self.redelivered: dict[int, Redeliveries] = {}
        self.removals: dict[int, Removal] = {}  # of the second
        self._removed: dict[int, tuple[int, int]] = {}  # the last total that was known, and its time
        self._ill: dict[tuple[bytes, bytes], int] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        slots = np.empty(0, np.int64)
        self.polled = self.fresh = slots
        self.removals = {}
        self.began = second if self.began < 0 else self.began
        polls = rows["queue_lag"]
        self._note_failed_servers(polls, second)
        polls = only(polls, (polls["status"] != b"down") & (polls["destination"] != b""))
        if len(polls):
            _, group = _by_queue(polls)
            last = np.zeros(int(group.max()) + 1, np.int64)
            last[group] = np.arange(len(polls))
            slots = np.array([self._slot(second, *one) for one in columns_of(polls, last, *_NAMES)], np.int64)
            polls, slots = pick(polls, last[slots >= 0]), slots[slots >= 0]
            self.polled = slots
            for slot in slots.tolist():
                self.known_since.setdefault(slot, second)
            for slot, holder, idle_one in zip(
                slots.tolist(), polls["holder"].tolist(), polls["idle_consumer"].tolist(), strict=True
            ):
                self.holders[slot], self.idle[slot] = text(holder), text(idle_one)
            for i in np.flatnonzero(polls["redelivered"] > 0):
                self.redelivered.setdefault(int(slots[i]), Redeliveries()).add(polls[i])
            for i in np.flatnonzero(known(polls["removed"])):
                self._see_removed(int(slots[i]), int(polls["t_ns"][i]), int(polls["removed"][i]))
            lag = _nan(polls["lag_messages"])
            undelivered, pending, idle = (
                _age(polls[c]) for c in ("oldest_undelivered_s", "oldest_pending_s", "idle_s")
            )
            age = np.where(np.isnan(undelivered), _age(polls["lag_s"]), undelivered)
            asked_for = np.char.find(polls["errors"], b"NOGROUP") >= 0
            still = np.isin(polls["status"], _STILL) & (lag > 0) & (polls["in_per_s"] > 0)
            self.series.put(
                second,
                slots,
                age_s=np.where(lag == 0, 0.0, age),
                pending_s=np.where(_nan(polls["pending"]) == 0, 0.0, pending),
                lag=lag,
                pending=_nan(polls["pending"]),
                idle_s=idle,
                at_s=polls["t_ns"] % SECOND / SECOND,
                out=polls["out_per_s"],
                stuck=still.astype(np.float64),
                consumers=_nan(polls["consumers"]),
                gone=np.where(polls["status"] == b"gone", 1.0 + asked_for, 0.0),
                rebalances=_nan(polls["rebalances"]),
                unstable=(polls["group_state"] == b"rebalancing").astype(np.float64),
                left_s=polls["retention_left_s"],
                poll_s=_took_s(polls),
                **{"in": polls["in_per_s"]},
            )
            self.fresh = self._of_well_servers(slots, polls, second)
        return self.series.carry(second, slots, _CARRY_S)

    def _see_removed(self, slot: int, at_ns: int, total: int) -> None:
        """A total below the last one begins anew: the agent or its poller was started again."""
        from_ns, before = self._removed.get(slot, (at_ns, total))
        self._removed[slot] = at_ns, total
        if total > before:
            self.removals[slot] = Removal(from_ns, at_ns, total - before)

    def watched(self, polls: np.ndarray) -> np.ndarray:
        """Which polls are of a queue that is watched; all while there is room for more queues."""
        if not self.series.full or not len(polls):
            return np.ones(len(polls), np.bool_)
        first, group = _by_queue(polls)
        its = np.array([_key(*one) in self.series for one in columns_of(polls, first, *_NAMES)], np.bool_)
        return np.asarray(its[group])

    def _note_failed_servers(self, polls: np.ndarray, second: int) -> None:
        """Remembers servers with a failed poll: waits of messages just after that say nothing about their consumers."""
        self._ill = {server: at for server, at in self._ill.items() if at >= second - _AFTER_S}
        self._ill |= dict.fromkeys(_servers(pick(polls, polls["status"] == b"down")), second)

    def _of_well_servers(self, slots: np.ndarray, polls: np.ndarray, second: int) -> np.ndarray:
        """Also remembers servers with a slow poll, for the same reason; not those of which some queue was always polled
        as slowly.
        """
        took_s = _took_s(polls)
        slow = took_s > _WELL_S
        if slow.any():
            usual_s = self.series.baseline("poll_s", slots[slow], second, 1).median
            slow_ones = pick(polls, slow)
            always = {*_servers(pick(slow_ones, took_s[slow] <= _LONGER * usual_s))}
            self._ill |= dict.fromkeys({*_servers(slow_ones)} - always, second)
        return slots[[server not in self._ill for server in _servers(polls)]] if self._ill else slots

    def _slot(self, second: int, *its: bytes) -> int:
        """its: as ``_NAMES``."""
        key, (raw, cluster) = _key(*its), its[-2:]
        system, destination, partition, group = map(text, its[:-2])
        slot = self.series.slot(key, second)
        if slot >= 0:
            if self.names.get(slot, ())[:4] != (system, destination, partition, group):
                self.redelivered.pop(slot, None)  # of another queue, which had this place before
                self._removed.pop(slot, None)
                self.known_since.pop(slot, None)
            self.names[slot], self._cluster[slot] = (system, destination, partition, group, raw), text(cluster)
        return slot

    def place(self, symptom: str, slot: int, metric: str) -> tuple[str, int]:
        """A message that one consumer holds is an episode of its own: it may last for hours, and the queue may have
        other problems meanwhile. So is a queue without a usual time, until there is one.
        """
        of = {UNTAKEN: " so far", **dict.fromkeys(DELIVERED, " of one")}
        return f"{symptom}{of.get(metric, '')}", slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, destination, partition, group, raw = self.names[slot]
        queue = f"{system} queue {destination}{f'/{partition}' if partition else ''}" + (
            f" group {group}" if group else ""
        )
        cluster = self._cluster[slot]
        if any(other[:4] == self.names[slot][:4] for one, other in self.names.items() if one != slot):
            queue += f" at {peer(raw)}"  # another cluster has a queue of that name
        scope = f"queue {destination}/{group}{f' of {cluster}' if cluster else ''}"
        episode = Episode(symptom, self.names[slot], slot, queue, scope)
        episode.keys = {
            "system": system,
            "cluster": cluster,
            "destination": destination,
            "partition": partition,
            "consumer_group": group,
        }
        return episode

    def settle(self, episode: Episode, second: int, lasted: int) -> None:
        if episode.metric == UNTAKEN:
            return  # what is usual is not known
        slot = np.array([episode.slot])
        lag = np.nan_to_num(self.series.recent("lag", slot, second, lasted)[0], nan=-1.0)
        rising = lasted - int(
            np.argmax(lag[::-1])
        )  # up to the last maximum: what arrived after it did not cause the lag
        for metric in self.metrics:
            now = self.series.recent(metric, slot, second, lasted)[0][: rising if metric == "in" else lasted]
            now = now[~np.isnan(now)]
            if not len(now):
                continue
            episode.facts[metric] = float(np.median(now) if metric in ("in", "out") else now[-1])
            # A message must be old before it is late: the fault began a little before the symptom.
            before = float(
                self.series.baseline(metric, slot, second, lasted + int(self.config.age_rise_s) + 1).median[0]
            )
            if not math.isnan(before):
                episode.facts[f"{metric}_base"] = before
                if metric == "in":
                    deficit = self.series.deficit(metric, episode.slot, second, lasted, before)
                    episode.facts["in_owed"], episode.facts["in_more"] = deficit
        self._taken(episode, slot, second)

    def _taken(self, episode: Episode, slot: np.ndarray, second: int) -> None:
        """``taken``: messages acknowledged a second since it began, as far as known; ``since_s``: how long that was at
        the last poll; ``crept``: whether some were acknowledged and then none again. The first polls do not count,
        since messages were in progress.
        """
        begun = episode.start_ns / SECOND
        seconds = second - episode.start_ns // SECOND + 1
        if seconds > SECONDS:
            return
        rates, at = (self.series.recent(metric, slot, second, seconds)[0] for metric in ("out", "at_s"))
        polled = np.arange(second - seconds + 1, second + 1) + at
        after = polled > begun
        usual, arriving = episode.facts.get("out_base", 0.0), episode.facts.get("in_base", math.inf)
        if not episode.facts.get("in", 0.0) > _CAUGHT_UP * arriving:
            # Its last polls may already include the backlog.
            caught_up = np.cumsum((rates <= _CAUGHT_UP * usual)[::-1])[::-1] == 0
            after &= ~caught_up
        if not after.any() or np.isnan(rates[after]).any():
            return
        since_s = float(polled[after][-1] - begun)
        # The first of these rates is of an interval that had begun before, maybe with consumers that were slow by then.
        early = min(usual * max(0.0, 1.0 - float(polled[after][0] - begun)), float(rates[after][0]))
        episode.facts["since_s"] = since_s
        took = rates[after][2:] > 0
        episode.facts["crept"] = float(np.any(took[:-1] & ~took[1:]))
        episode.facts["taken"] = max(0.0, float(rates[after].sum()) - early) / since_s
