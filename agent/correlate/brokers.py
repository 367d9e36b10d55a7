"""Brokers, as the agent's own pollers see them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from agent.common.copies import only, pick
from agent.correlate.episode import Episode
from agent.correlate.rows import groups, known
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import peer, text
from agent.tables import TABLES

#: Columns that a symptom of brokers reads.
READS = {"queue_lag": ("system", "destination", "status", "reason", "failure", "poll_ns", "peer")}
#: How reasons of losses begin (agent/queues/redis_rewound.py).
FAIL_OVER, REPLACED = "fail-over: ", "restarted or replaced: "
LOST = (b"rewound", b"gone")
_NO_ANSWER = TABLES["queue_lag"].code("failure", "no_answer")
#: Failures that are tickscope's own: its poller was down, or its login is wrong.
_OURS = [TABLES["queue_lag"].code("failure", name) for name in ("unasked", "login")]
#: The process that polls.
POLLER = b"tickscope-poll"


def failed_by_itself(polls: np.ndarray) -> np.ndarray:
    """Whether each poll failed for a reason that is tickscope's own: it says nothing of the server. Reads failure."""
    return np.isin(polls["failure"], _OURS)


def failure(reason: bytes, server: str) -> str:
    """Why a poll failed, without the source's name, which ends with the server (and /N, for a database of Redis)."""
    return re.sub(rf"^.*{re.escape(server)}(/\d+)?: ", "", text(reason))


@dataclass(frozen=True)
class Poll:
    """The worst poll of a broker in a second. down: it failed, since ``start_ns``; unanswered: without any answer;
    before: the number of failed polls just before it.
    """

    start_ns: int
    end_ns: int
    took_ns: int
    down: bool = False
    unanswered: bool = False
    before: int = 0
    reason: str = ""
    lost: str = ""  # what it reports as lost, if it does


class BrokerWatch(Watch):
    """One subject is one broker: a system at a peer."""

    metrics = ("poll_ns", "down")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, bytes]] = {}
        self.polls: dict[int, Poll] = {}
        self._begun: dict[int, tuple[int, int]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        polled = rows.get("queue_lag")
        self.polls = {}
        if polled is not None:
            polled = only(polled, ~failed_by_itself(polled))
        if polled is None or not len(polled):
            return np.empty(0, np.int64)
        lost = _lost(polled)
        polled = pick(
            polled, np.lexsort((polled["poll_ns"], polled["status"] == b"down"))
        )  # the worst of each broker comes last
        _, group = groups([polled["system"], polled["peer"]])
        last = np.zeros(int(group.max()) + 1, np.int64)
        last[group] = np.arange(len(polled))
        polled = pick(polled, last)
        slots = np.array([self._slot(row, second) for row in polled], np.int64)
        polled, slots = only(polled, slots >= 0), slots[slots >= 0]
        self.polls = {
            slot: replace(self._poll(slot, row), lost=lost.get(self.names[slot], ""))
            for slot, row in zip(slots.tolist(), polled, strict=True)
        }
        down = polled["status"] == b"down"
        self.series.put(
            second,
            slots,
            poll_ns=np.where(down | ~known(polled["poll_ns"]), np.nan, polled["poll_ns"]),
            down=down.astype(np.float64),
        )
        return slots

    def _slot(self, row: np.void, second: int) -> int:
        key = text(row["system"]), row["peer"].tobytes()
        slot = self.series.slot(key, second)
        if slot >= 0:
            self.names[slot] = key
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, raw = self.names[slot]
        where = peer(raw)
        name = f"the {system} server{f' at {where}' if where else ''}"
        keys = {"system": system, "peer": raw}
        return Episode(symptom, (system, raw), slot, name, where, keys=keys)

    def _poll(self, slot: int, row: np.void) -> Poll:
        end, took = int(row["t_ns"]), max(0, int(row["poll_ns"]))
        if row["status"] != b"down":
            self._begun.pop(slot, None)
            return Poll(end - took, end, took)
        begun, before = self._begun.get(slot, (end - took, 0))
        self._begun[slot] = begun, before + 1
        return Poll(begun, end, took, True, bool(row["failure"] == _NO_ANSWER), before, text(row["reason"]))

    def bad(self, symptom: str, slot: int, second: int, poll: Poll, base: float) -> None:
        """Opens or extends the episode of a bad poll."""
        start, end = poll.start_ns, poll.end_ns
        episode = self.active.get((symptom, slot))
        if episode is not None:
            self.extend(episode, second, float(end - start), end)
            return
        episode = self.describe(symptom, slot)
        episode.metric, episode.unit, episode.base, episode.words = "poll_ns", "ns", base, poll.reason
        episode.start_ns, episode.end_ns = start, end
        self.open(episode, second, float(end - start), 1)


def _lost(polled: np.ndarray) -> dict[tuple[str, bytes], str]:
    """What brokers lost, by system and peer: of the whole server first, else of the first of its queues."""
    rows = polled[np.isin(polled["status"], LOST) & _begins(polled["reason"])]
    out: dict[tuple[str, bytes], str] = {}
    for row in rows[np.argsort(rows["destination"] != b"", kind="stable")]:
        where = f"{text(row['destination'])}: " if row["destination"] else ""
        out.setdefault((text(row["system"]), row["peer"].tobytes()), where + text(row["reason"]))
    return out


def _begins(reasons: np.ndarray) -> np.ndarray:
    return np.asarray(
        np.char.startswith(reasons, FAIL_OVER.encode()) | np.char.startswith(reasons, REPLACED.encode()), np.bool_
    )
