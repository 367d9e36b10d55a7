"""Whether a consumer group keeps up, and when its queue is empty or full, by rules after Burrow's
(github.com/linkedin/Burrow/wiki/Consumer-Lag-Evaluation-Rules). Pure: time comes from the samples.

There are no absolute thresholds, since a lag of 10,000 may be harmless and a lag of 3 a standstill. What counts is
whether the group makes progress. Unlike Burrow's rules:
  - an idle producer is no lag: a group that has read everything is ok for as long as nothing arrives;
  - one poll without lag does not hide a stop: what counts is how long nothing was read although messages had come;
  - a group that reads every half minute is not stalled in between: the bar is twice its longest recent pause;
  - a trend is a slope that exceeds its own error, so that one odd poll neither makes nor hides it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf, nan, sqrt
from typing import NamedTuple

#: From the least to the most severe.
STATUSES = ("ok", "draining", "unknown", "lagging", "rewound", "stalled", "stopped", "down")
WINDOW_NS = 10_000_000_000
#: Slow trends show in a window of this length, of which every tenth part keeps one sample.
_SLOW_NS = 60_000_000_000
#: Samples below which there is no trend.
_LEAST = 4
#: How many of a group's last pauses are remembered, and the longest bar that they make.
_PAUSES, _LONGEST_NS = 16, 60_000_000_000
#: A trend begins when the slope is this many times its error (more with few samples, as Student's t), and ends below
#: the second number.
_BEGINS, _ENDS = 3.0, 1.0
#: Polls in a row that must agree before a trend is reported, or no longer is.
_AGREE = 3


def severity(status: str | None) -> int:
    """0 for ok and for no status; larger is worse. A status that is not listed is like unknown."""
    status = status or "ok"
    return STATUSES.index(status if status in STATUSES else "unknown")


class Sample(NamedTuple):
    """One poll; None is unknown. ``added`` and ``acked`` are running totals (any origin), ``position`` is any mark of
    how far the group read. exact: whether lag and acked are. asked_s: time since any of its consumers asked for
    messages. age_s: of the oldest undelivered message; kept_s: how long the broker keeps a message. prefetch: how many
    messages its consumers may have unacknowledged, all together; beside: those that they have of other queues. held:
    whether pending messages stay pending when their consumers end. unit: of the lag, for texts; empty: messages. full:
    what happens when the memory, or other room for the queue, is used. waits_for: what it waits for if it reads
    nothing, if not for its consumers.
    """

    t_ns: int
    lag: int | None
    pending: int = 0
    consumers: int | None = None
    position: Hashable = None
    acked: int | None = None
    added: int | None = None
    exact: bool = True
    asked_s: float | None = None
    age_s: float | None = None
    kept_s: float | None = None
    prefetch: int | None = None
    beside: int | None = None
    held: bool = False
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    unit: str = ""
    full: str = "memory full"
    waits_for: str | None = None


class QueueState(NamedTuple):
    """status: one of STATUSES (never down). drains_in_s: until the lag is 0 at the present rate. limit_in_s: until the
    server's memory is full, or the oldest undelivered message is deleted. error_s: of whichever of both is known, 95 %.
    NaN is unknown.
    """

    status: str
    reason: str
    drains_in_s: float = nan
    limit_in_s: float = nan
    error_s: float = nan


class LagSlope(NamedTuple):
    """Per second, with its standard error. samples: how many it is made of. wanders: variance of the steps between
    samples around it, per second.
    """

    per_s: float
    error: float
    samples: int
    wanders: float

    def significant(self, times: float) -> bool:
        return abs(self.per_s) > times * (1 + 4 / (self.samples - 2)) * self.error

    def until(self, distance: float) -> tuple[float, float]:
        """(seconds, their error, 95 %) until so much is covered at this rate. The error has two parts: that of the
        rate, and what a sum of random steps adds on its way.
        """
        rate = abs(self.per_s)
        seconds = distance / rate
        return seconds, 2 * sqrt((seconds * self.error / rate) ** 2 + seconds * self.wanders / rate**2)


def slope(points: Sequence[tuple[int, float]]) -> LagSlope | None:
    """The line of least squares through points (time in ns, a count). Its error includes that counts are whole numbers,
    and that each step may be random, as those of a queue are. None with too few points.
    """
    if len(points) < _LEAST or points[0][0] == points[-1][0]:
        return None
    n, start = len(points), points[0][0]
    times, values = [(t - start) / 1e9 for t, _ in points], [value for _, value in points]
    middle, mean = sum(times) / n, sum(values) / n
    spread = covered = 0.0
    for t, value in zip(times, values, strict=True):
        spread += (t - middle) ** 2
        covered += (t - middle) * value
    per_s = covered / spread
    off = wanders = 0.0
    last_off = values[0] - mean + per_s * middle
    for t, value in zip(times, values, strict=True):
        this_off = value - mean - per_s * (t - middle)
        off += this_off * this_off
        wanders += (this_off - last_off) ** 2
        last_off = this_off
    wanders /= times[-1]
    # 6/5: the variance of this slope of a random walk, of 1 a second over 1 s.
    return LagSlope(per_s, sqrt(max(off / (n - 2), 1 / 12) / spread + 1.2 * wanders / times[-1]), n, wanders)


@dataclass
class _Pauses:
    """How long something has been due, and how long it usually is before it happens."""

    since_ns: int | None = None
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_PAUSES))

    def see(self, t_ns: int, due: bool, happened: bool) -> None:
        if happened:
            self.recent.append(0 if self.since_ns is None else t_ns - self.since_ns)
            self.since_ns = None
        if self.since_ns is None and due:
            self.since_ns = t_ns

    def lasted_ns(self, t_ns: int) -> int:
        return 0 if self.since_ns is None else t_ns - self.since_ns

    def too_long(self, t_ns: int, window_ns: int) -> bool:
        usual_ns = min(2 * max(self.recent, default=0), _LONGEST_NS)
        return self.lasted_ns(t_ns) >= max(0.9 * window_ns, usual_ns)


class _Trend(NamedTuple):
    """How the lag moves: ok, lagging or draining; why; and its slope, None for ok."""

    status: str = "ok"
    reason: str = ""
    slope: LagSlope | None = None


@dataclass
class Progress:
    """The recent samples of a group, and what follows from them."""

    window_ns: int = WINDOW_NS
    samples: deque[Sample] = field(default_factory=deque)
    _slow: deque[Sample] = field(default_factory=lambda: deque(maxlen=10))
    _reads: _Pauses = field(default_factory=_Pauses)
    _acks: _Pauses = field(default_factory=_Pauses)
    _unserved: _Pauses = field(default_factory=_Pauses)
    _position: Hashable = None  # the last ones that were known
    _acked: int | None = None
    _furthest: Sample | None = None
    _behind: int = 0  # samples in a row that are behind ``_furthest``
    _rewound: tuple[int, int] | None = None  # (time, messages)
    _trend: _Trend = field(default_factory=_Trend)
    _next: tuple[str, int] = ("ok", 0)  # where the last samples point to, and how many do

    def add(self, sample: Sample) -> None:
        """Samples must come in time order. One sample as old as the window is kept, so that the window can be full. A
        running total that begins anew begins everything anew.
        """
        last = self.samples[-1] if self.samples else None
        if last is not None and last.added is not None and sample.added is not None and sample.added < last.added:
            vars(self).update(vars(Progress(self.window_ns)))
            last = None
        waiting = bool(sample.lag)
        acked = None not in (self._acked, sample.acked) and self._acked != sample.acked
        read = None not in (self._position, sample.position) and self._position != sample.position
        read |= sample.position is None and acked  # as of a group that commits again after a pause
        self._position = self._position if sample.position is None else sample.position
        self._acked = self._acked if sample.acked is None else sample.acked
        self._reads.see(sample.t_ns, waiting and sample.position is not None, read)
        self._acks.see(sample.t_ns, sample.pending > 0 and sample.acked is not None, acked)
        unserved = sample.consumers == 0 and (waiting or (sample.held and sample.pending > 0))
        self._unserved.see(sample.t_ns, unserved, read or not unserved)
        self._see_position(sample)
        self.samples.append(sample)
        while len(self.samples) > _LEAST and self.samples[1].t_ns <= sample.t_ns - self.window_ns:
            self.samples.popleft()
        self._see_trend(sample)
        if not self._slow or sample.t_ns - self._slow[-1].t_ns >= _SLOW_NS // 10:
            self._slow.append(sample)

    def per_second(self, name: str) -> float:
        """Rate of ``added`` or ``acked`` between the last two polls; NaN when unknown."""
        if len(self.samples) < 2:
            return nan
        before, now = self.samples[-2], self.samples[-1]
        a, b = getattr(before, name), getattr(now, name)
        if a is None or b is None or b < a or now.t_ns <= before.t_ns:
            return nan
        return float((b - a) * 1e9 / (now.t_ns - before.t_ns))

    def judge(self) -> QueueState:
        """The state at the last sample."""
        last = self.samples[-1]
        status, reason = (
            self._stands_still(last)
            or self._went_back(last)
            or (("unknown", "the lag is not known") if last.lag is None else self._trend[:2])
        )
        moves = self._trend.slope
        if status == "draining" and moves is not None:
            drains_s, error_s = moves.until(last.lag or 0)
            return QueueState(status, reason, drains_in_s=drains_s, error_s=error_s)
        if status in ("lagging", "stalled", "stopped"):
            left_s, error_s, limit = self._limit(status, last)
            if left_s < inf:
                return QueueState(status, f"{reason}; {limit}", limit_in_s=left_s, error_s=error_s)
        return QueueState(status, reason)

    def _see_position(self, sample: Sample) -> None:
        """Notes a group that was set back: what it acknowledged falls in two samples in a row. One may be read while
        messages arrive, and the broker counts those before the others.
        """
        if sample.acked is None or sample.added is None or not sample.exact:
            return
        furthest = self._furthest
        if furthest is None or sample.acked >= (furthest.acked or 0):
            self._furthest, self._behind = sample, 0
        elif _moved(furthest, sample):
            self._behind += 1
            if self._behind == 2:
                self._rewound = sample.t_ns, (furthest.acked or 0) - sample.acked
                self._furthest, self._behind = sample, 0

    def _stands_still(self, last: Sample) -> tuple[str, str] | None:
        t_ns, lag = last.t_ns, last.lag or 0
        if self._unserved.too_long(t_ns, self.window_ns):
            pending = f", {last.pending} pending" if last.held and last.pending else ""
            for_ns = self._unserved.lasted_ns(t_ns)
            return "stopped", f"no consumer for {_s(for_ns)}, {lag}{last.unit} undelivered{pending}"
        if lag and self._reads.too_long(t_ns, self.window_ns):
            for_ns = self._reads.lasted_ns(t_ns)
            if last.asked_s is not None and last.asked_s * 1e9 >= 0.9 * for_ns:
                return "stopped", f"no consumer requested messages for {_s(for_ns)}, {lag}{last.unit} undelivered"
            full = f"; prefetch exhausted: {_unacknowledged(last)} of {last.prefetch}" if _full(last) else ""
            waits = f"; {last.waits_for}" if last.waits_for else ""
            return "stalled", f"nothing read for {_s(for_ns)}, {lag}{last.unit} undelivered{full}{waits}"
        grown = last.pending - self.samples[0].pending
        if grown > 0 and self._acks.too_long(t_ns, self.window_ns):
            for_ns = self._acks.lasted_ns(t_ns)
            return "stalled", f"none acknowledged for {_s(for_ns)}, {last.pending} pending, grew by {grown}"
        return None

    def _went_back(self, last: Sample) -> tuple[str, str] | None:
        if self._rewound is None or last.t_ns - self._rewound[0] > self.window_ns:
            return None
        since, messages = self._rewound
        return "rewound", f"went back by {messages}{self.samples[-1].unit or ' messages'} {_s(last.t_ns - since)} ago"

    def _see_trend(self, last: Sample) -> None:
        if not last.lag:
            self._trend, self._next = _Trend(), ("ok", 0)
            return
        now = self._direction(list(self.samples))
        if now.slope is None and not self._turned():
            now = self._direction([*self._recent(), last])
        self._next = (now.status, self._next[1] + 1 if self._next[0] == now.status else 1)
        if now.status == self._trend.status or self._next[1] >= _AGREE:
            self._trend = now

    def _direction(self, samples: Sequence[Sample]) -> _Trend:
        """Where these samples point to. A trend goes on more easily than it begins."""
        known = [s for s in samples if s.lag is not None]
        points = [(s.t_ns, s.lag or 0) for s in known]
        (first_ns, first), (last_ns, last) = points[0], points[-1]
        if last_ns - first_ns < 0.9 * self.window_ns or all(lag == first for _, lag in points):
            return _Trend()
        found = slope(points)
        if found is None:
            return _Trend()
        status, verb = ("lagging", "grew") if found.per_s > 0 else ("draining", "fell")
        if status == "lagging" and _mark(known[-1]) is not None and not _moved(known[0], known[-1]):
            return _Trend()  # nothing was read: whether it is stalled is another rule's
        newest = last - points[-1 - len(points) // 3][1]
        begins = found.significant(_BEGINS) and newest * found.per_s > 0
        if not begins and not (status == self._trend.status and found.significant(_ENDS)):
            return _Trend()
        return _Trend(status, f"lag {verb} from {first} to {last}{known[-1].unit} in {_s(last_ns - first_ns)}", found)

    def _turned(self) -> bool:
        """Whether the last samples go against the trend. A minute's slope shows that too late."""
        trend = self._trend.slope
        if trend is None:
            return False
        newest = slope([(s.t_ns, s.lag) for s in list(self.samples)[-_LEAST - 1 :] if s.lag is not None])
        return newest is not None and newest.per_s * trend.per_s < 0 and newest.significant(_BEGINS)

    def _recent(self) -> list[Sample]:
        """Some samples of the last minute, but not the newest."""
        last = self.samples[-1]
        return [s for s in self._slow if last.t_ns - _SLOW_NS <= s.t_ns < last.t_ns]

    def _limit(self, status: str, last: Sample) -> tuple[float, float, str]:
        """(seconds, their error, in words) until the nearer limit is reached; infinite if none is."""
        found = [(inf, nan, "")]
        if last.memory_limit_bytes and last.memory_bytes is not None:
            used = [(s.t_ns, s.memory_bytes) for s in (*self._recent(), last) if s.memory_bytes is not None]
            growth = slope(used)
            if growth is not None and growth.per_s > 0 and growth.significant(_BEGINS):
                left = growth.until(max(last.memory_limit_bytes - last.memory_bytes, 0))
                found.append((*left, f"{last.full} in {_s(left[0] * 1e9)}"))
        if last.kept_s is not None and last.age_s is not None:
            # In ms, since the error of a slope is that of whole numbers.
            ages = [(s.t_ns, s.age_s * 1000) for s in self.samples if s.age_s is not None]
            growth = LagSlope(1000.0, 0.0, _LEAST, 0.0) if status != "lagging" else slope(ages)
            if growth is not None and growth.per_s > 0 and growth.significant(_BEGINS):
                left = growth.until(max(last.kept_s - last.age_s, 0.0) * 1000)
                found.append((*left, f"deleted in {_s(left[0] * 1e9)}"))
        return min(found, key=lambda one: one[0])


def _mark(sample: Sample) -> Hashable:
    """How far the group got. What it acknowledged shows progress, but not that it reads nothing: it may do so later."""
    return sample.acked if sample.position is None else sample.position


def _full(sample: Sample) -> bool:
    """Whether the consumers hold as many messages as they may: they get no other one before they acknowledge one."""
    return bool(sample.prefetch) and _unacknowledged(sample) >= (sample.prefetch or 0)


def _unacknowledged(sample: Sample) -> int:
    """What its consumers have, also of other queues."""
    return sample.pending + (sample.beside or 0)


def _moved(before: Sample, now: Sample) -> bool:
    """Whether the group read something between two samples."""
    return _mark(before) != _mark(now)


def _s(ns: float) -> str:
    return f"{ns / 1e9:.0f} s"
