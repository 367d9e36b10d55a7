"""Ports of this host where processes answer, and how long their clients wait for answers, second by second."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from agent.columns import NULL_I64
from agent.common.address import UNIX
from agent.common.copies import pick, together
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, groups, known
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import address, process, text
from agent.tables import TABLES

_MUCH = 0.1  # a process counts for its port from this share of the port's requests on
_MOST_S = 60
_LEAST_S = 10
_SAMPLES = 2  # samples of waiting requests a second (agent/probes/tcp.py)
_PATIENT, _ALIKE = (
    0.3,
    0.5,
)  # waiting is by design from so many waiting requests on, on average; and from this share of those that wait now
_MOST = 1 << 32  # larger numbers of requests a second are not believed
#: Brokers that send a message when there is one: what follows an acknowledgement is no answer to it.
_PUSHING = (b"rabbitmq", b"nats")
#: What tells their ports, and connections that wait to be accepted.
POLLS = {
    "queue_lag": ("system", "peer"),
    "socket_queue": ("sock_id", "netns", "kind", "saddr", "sport", "queue", "limit"),
}
_ACCEPT = TABLES["socket_queue"].code("kind", "accept")
#: A connection that waits for so long is a request that waits; polls further apart do not show who is accepted.
_UNACCEPTED_NS, _POLLED_NS = SECOND, 3 * SECOND


class AnswerWatch(Watch):
    """One subject is one port of a network namespace: several processes may answer there.

    n: requests; held: how many answered requests waited for long at the same time, on average; waiting: requests that
    have waited for an answer for long; med_ns, high_ns: median and 90th percentile of the wait (without answers, the
    wait so far); max_ns: the slowest. worst: by slot, the row of the slowest request of the second.
    """

    metrics = ("n", "held", "waiting", "med_ns", "high_ns", "max_ns")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.worst: dict[int, np.void] = {}
        self._pushing = set[int]()  # ports of such brokers
        self._queued: dict[tuple[int, int], tuple[int, int, int]] = {}  # by listener: (length, since when, last poll)
        self._unaccepted = set[int]()  # slots: in the last second, what waited longest were several of these

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self.worst = {}
        polls = rows["queue_lag"]
        ends = np.unique(polls["peer"][np.isin(polls["system"], _PUSHING)])
        self._pushing |= {int.from_bytes(end.tobytes()[16:], "little") for end in ends}
        latencies = asked_for(rows["service_latency"])
        unaccepted = self._unaccepted_by(second, rows["socket_queue"], latencies)
        self._unaccepted = set()
        if len(unaccepted):
            latencies = together([latencies, unaccepted])
        if not len(latencies):
            return np.empty(0, np.int64)
        first, group = groups([latencies["netns"], latencies["sport"]])
        requests, waiting = (latencies[name].clip(0, _MOST) for name in ("requests", "waiting"))  # unknown is below 0
        slots = np.array(
            [self.series.slot((int(latencies["netns"][i]), int(latencies["sport"][i])), second) for i in first],
            np.int64,
        )
        n = np.bincount(group, requests)
        order = np.lexsort((-latencies["max_ns"], group))
        top = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
        much = requests >= _MUCH * n[group]
        high = np.zeros(len(first))
        np.maximum.at(high, group[much], latencies["p90_ns"][much])
        values = {
            "n": n,
            "held": np.bincount(group, latencies["held_ns"].clip(0, _MOST * SECOND)) / SECOND,
            "waiting": np.bincount(group, waiting),
            "med_ns": np.where(n > 0, _median(latencies["p50_ns"], requests, group), latencies["max_ns"][top]),
            "high_ns": np.where(n > 0, high, latencies["max_ns"][top]),
            "max_ns": latencies["max_ns"][top].astype(np.float64),
        }
        fits = slots >= 0
        self.worst = {int(slots[i]): latencies[top[i]] for i in np.flatnonzero(fits)}
        asked = len(latencies) - len(unaccepted)
        several = (top >= asked) & (latencies["waiting"][top] > _SAMPLES)
        self._unaccepted = {int(slots[i]) for i in np.flatnonzero(fits & several)}
        self._before(
            second, slots, fits & (latencies["t_ns"] - latencies["interval_ns"] < (second - 1) * SECOND)[top], values
        )
        return self.put(second, slots, **values)

    def _before(self, second: int, slots: np.ndarray, spans: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """If the agent gets too little CPU, an interval is longer than a second, and the previous second has no row. It
        gets the values of this one.
        """
        none = spans.copy()
        none[spans] = np.isnan(self.series.recent("n", slots[spans], second - 1, 1)[:, 0])
        self.series.put(second - 1, slots[none], **{name: values[name][none] for name in ("med_ns", "high_ns")})

    def _unaccepted_by(self, second: int, queues: np.ndarray, latencies: np.ndarray) -> np.ndarray:
        """Connections that no process of a port accepts, in the form of requests that wait. Who answers on a port
        accepts its connections, and so does whose queue becomes shorter. A full queue is a symptom of its own.
        """
        accept = pick(queues, (queues["kind"] == _ACCEPT) & (queues["pid"] > 0)) if len(queues) else queues
        if not (accept["queue"] > 0).any():
            self._queued = {} if len(accept) else self._queued
            return latencies[:0]
        answered = latencies[latencies["requests"] > 0]
        busy = set(zip(answered["netns"].tolist(), answered["sport"].tolist(), strict=True))
        found, known_before, self._queued = [], self._queued, {}
        for row in accept[np.argsort(accept["t_ns"], kind="stable")]:
            place, n, t_ns = (int(row["netns"]), int(row["sport"])), int(row["queue"]), int(row["t_ns"])
            listener = (place[0], int(row["sock_id"]))
            before, since_ns, last_ns = self._queued.pop(listener, known_before.get(listener, (0, 0, 0)))
            if 0 < n < row["limit"] and place not in busy:
                since_ns = since_ns if n >= before > 0 and t_ns - last_ns < _POLLED_NS else t_ns
                self._queued[listener] = n, since_ns, t_ns
                if t_ns - since_ns >= _UNACCEPTED_NS:
                    found.append((row, n, since_ns))
        out = np.zeros(len(found), latencies.dtype)
        for i, (row, n, since_ns) in enumerate(found):
            for name in ("t_ns", "pid", "proc_start_ns", "comm", "netns", "saddr", "sport"):
                out[i][name] = row[name]
            out[i]["waiting"], out[i]["max_from_ns"], out[i]["max_ns"] = _SAMPLES * n, since_ns, row["t_ns"] - since_ns
            out[i]["interval_ns"], out[i]["tid"] = SECOND, NULL_I64
        return out

    def unaccepted(self, slot: int) -> bool:
        """Whether what waited longest on a port in that second were several connections that no process accepted. A
        single one may be that of a scan, or of a client that is gone.
        """
        return slot in self._unaccepted

    def by_design(self, slots: np.ndarray, second: int, since: np.ndarray) -> np.ndarray:
        """For each port, whether it is one of a broker that sends messages, or about as many requests waited for long
        before as do now. Such requests wait for an event (long polling), and the lack of events is no fault. since: the
        first second of "now".
        """
        return np.array(
            [self._patient(int(slot), second, int(of)) for slot, of in zip(slots, since, strict=True)], np.bool_
        )

    def _patient(self, slot: int, second: int, since: int) -> bool:
        if slot in self.worst and int(self.worst[slot]["sport"]) in self._pushing:
            return True
        lasted, at = max(1, min(_MOST_S, second - since + 1)), np.array([slot])
        held, waiting = (self.series.recent(name, at, second, lasted + _MOST_S)[0] for name in ("held", "waiting"))
        before, now = (
            max(_mean(held[part]), _mean(waiting[part]) / _SAMPLES) for part in (slice(-lasted), slice(-lasted, None))
        )
        return before >= _PATIENT and before >= _ALIKE * now

    def settle(self, episode: Episode, second: int, lasted: int) -> None:
        """n: requests a second during the episode, including those that arrived together at its end; and before."""
        slot = np.array([episode.slot])
        episode.facts["n"] = float(np.nansum(self.series.recent("n", slot, second, lasted))) / lasted
        before = float(self.series.baseline("n", slot, second, lasted).median[0])
        if not math.isnan(before):
            episode.facts["n_base"] = before
            deficit = self.series.deficit("n", episode.slot, second, lasted, before)
            episode.facts["n_owed"], episode.facts["n_more"] = deficit

    def describe(self, symptom: str, slot: int) -> Episode:
        row = self.worst[slot]
        netns, port = int(row["netns"]), int(row["sport"])
        pid, tick, comm = int(row["pid"]), int(row["proc_start_ns"]) // 10_000_000, text(row["comm"])
        raw = row["saddr"].tobytes()
        where = address(raw) if raw.startswith(UNIX) else f"port {port}"
        subject, scope = f"{process(comm, pid)} on {where}", f"{pid}/{tick}"
        episode = Episode(
            symptom, (netns, port), slot, subject, scope, keys={"sport": port}, pid=pid, start_tick=tick, comm=comm
        )
        episode.facts["port"] = float(port)
        if known(row["tid"]) and row["tid"] > 0:
            episode.facts["tid"] = float(row["tid"])
        return episode

    def when(self, slot: int) -> tuple[int, int]:
        """From when to when the slowest request of the second waited, CLOCK_BOOTTIME ns."""
        row = self.worst[slot]
        begun = int(row["max_from_ns"]) if known(row["max_from_ns"]) else int(row["t_ns"]) - SECOND
        return begun, begun + int(row["max_ns"])


def asked_for(latencies: np.ndarray) -> np.ndarray:
    """Rows of ``service_latency`` about ports of known processes that had, or still have, requests."""
    some = (latencies["requests"] > 0) | (latencies["waiting"] > 0)
    return np.asarray(latencies[some & (latencies["sport"] > 0) & (latencies["pid"] > 0)])


def _mean(values: np.ndarray) -> float:
    """The mean of the seconds with data, at least as many as a baseline needs."""
    return float(np.nansum(values)) / max(min(_LEAST_S, len(values)), int(np.count_nonzero(~np.isnan(values))), 1)


def _median(values: np.ndarray, weights: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The weighted median of each group; any value for a group without weight."""
    order = np.lexsort((values, group))
    upto = np.cumsum(weights[order])
    ends = upto[np.flatnonzero(np.diff(group[order], append=-1))]
    begins = np.append(0, ends[:-1])
    middle = np.searchsorted(upto, (begins + ends + 1) // 2).clip(0, len(upto) - 1)
    return np.asarray(values[order][middle], np.float64)
