"""What to profile for which symptom, and for how long. Pure: time comes from the caller.

A profile slows the profiled process, and the whole host a little (docs/costs.md), and any user can cause findings. So
profiles take at most a tenth of the time, those of one user a quarter of that (agent/common/fairness.py). A process
with a lasting problem is profiled ever more rarely.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from agent.common import fairness
from agent.common.fairness import UpperBound
from agent.common.recent import Recent

SECOND = 1_000_000_000
#: Length of a profile, and of its ``calls`` family, whose tracepoints put every call of every process on the slow path.
PROFILE_NS, CALLS_NS = 3 * SECOND, SECOND
#: A shorter profile is not started.
LEAST_NS = SECOND
#: Profiling time for one episode of a symptom: one profile, and a shorter one later.
EPISODE_NS = 5 * SECOND
#: Pause until a process is profiled again. It doubles each time, until there was no profile for ``FORGET_NS``.
PAUSE_NS, LONGEST_PAUSE_NS, FORGET_NS = 20 * SECOND, 640 * SECOND, 3600 * SECOND
#: Share of the time for all profiles together, and how much may accumulate.
SHARE, MOST_NS = 0.10, 20 * SECOND
#: Processes and episodes that are remembered.
REMEMBERED = 1024
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "on-demand profile of a process",
        PROFILE_NS / 1e9,
        "ends",
        "`investigation`",
        "s",
        setting="`investigate: off`",
    ),
    UpperBound(
        "findings",
        "share of time with on-demand profiles",
        f"{SHARE:.0%}, {SHARE / 4:.1%} per user",
        "refused or shortened",
        "`status` (`investigation`: `refused`)",
        setting="`investigate: off`",
    ),
    UpperBound(
        "findings",
        "pause between on-demand profiles of one process",
        f"{PAUSE_NS / 1e9:g} s, doubled each time, up to {LONGEST_PAUSE_NS / 1e9:g} s",
        "not profiled",
        "`investigation`",
    ),
)

_HELD_UP = ("oncpu", "offcpu", "block", "contention", "reclaim", "calls")
_CONNECTING = ("synack", "contention", "offcpu")
_FAMILIES = {
    "decision_latency": _HELD_UP,
    "service_latency": _HELD_UP,
    "blocked_time": _HELD_UP,
    "sender_stalled": _HELD_UP,
    "receiver_stalled": _HELD_UP,
    "broker_stall": _HELD_UP,
    "queue_lag": _HELD_UP,
    "silence": _HELD_UP,
    "deadline_exceeded": _HELD_UP,
    "window_shut": _HELD_UP,
    "accept_overflow": _CONNECTING,
    "connect_latency": _CONNECTING,
    "connect_failures": _CONNECTING,
    "handshake_latency": (*_CONNECTING, "calls"),
}


def families_of(symptom: str) -> tuple[str, ...]:
    """The families that may show the cause, in the order of attachment; none if a profile would show nothing new."""
    return _FAMILIES.get(symptom, ())


class ProfiledProcess(NamedTuple):
    """start_tick: when it started, in units of 10 ms."""

    pid: int
    start_tick: int


class ProfileBudget:
    """``spent_ns``: in all. ``refused`` counts profiles that were not granted, by reason."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.refused: dict[str, int] = {}
        self._time = fairness.Budget(SHARE * SECOND, MOST_NS)
        self._pauses = Recent[ProfiledProcess, tuple[int, int]](REMEMBERED)  # (end, length of the next one)
        self._episodes = Recent[Hashable, int](REMEMBERED)
        self._refused = Recent[Hashable, None](REMEMBERED)

    def pausing(self, process: ProfiledProcess, now_ns: int) -> bool:
        """Whether it was profiled not long ago."""
        return now_ns < self._pauses.get(process, (0, 0))[0]

    def grant(self, episode: Hashable, process: ProfiledProcess, uid: int, now_ns: int) -> int:
        """For how long this process may be profiled now, ns; 0 for not at all."""
        left = min(EPISODE_NS - self._episodes.get(episode, 0), PROFILE_NS)
        if self.pausing(process, now_ns) or left < LEAST_NS:
            return 0
        left = min(left, int(self._time.left(uid, now_ns)))
        if left < LEAST_NS:
            self._refuse(episode, "budget of its user" if self._time.left(0, now_ns) >= LEAST_NS else "budget")
            return 0
        return left

    def _refuse(self, episode: Hashable, why: str) -> None:
        """Counts each episode once."""
        if episode not in self._refused:
            self.refused[why] = self.refused.get(why, 0) + 1
        self._refused[episode] = None

    def spend(self, episode: Hashable, process: ProfiledProcess, uid: int, ns: int, now_ns: int, begins: bool) -> None:
        """Charges the time of a profile of this process. begins: False if the process joins a running profile, which
        was charged already.
        """
        self._time.spend(uid, ns, now_ns, of_all=begins)
        self.spent_ns += ns if begins else 0
        self._episodes[episode] = max(self._episodes.get(episode, 0), 0) + ns
        until_ns, pause_ns = self._pauses.get(process, (now_ns, PAUSE_NS))
        pause_ns = PAUSE_NS if now_ns - until_ns > FORGET_NS else pause_ns
        self._pauses[process] = now_ns + ns + pause_ns, min(2 * pause_ns, LONGEST_PAUSE_NS)
