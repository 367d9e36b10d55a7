"""go.uber.org/ratelimit: observed at Take, which reads its clock and sleeps; the sleep is observed at the clock that
New sets.

v0.3  type atomicInt64Limiter struct { prepadding [64]byte; state int64; postpadding [56]byte;
          perRequest, maxSlack time.Duration; clock Clock }
v0.2  type atomicLimiter struct { state unsafe.Pointer; padding [56]byte; perRequest, maxSlack time.Duration;
          clock Clock }
v0.1  type limiter struct { sync.Mutex; last time.Time; sleepFor, perRequest, maxSlack time.Duration;
          clock Clock }; v0.2 calls it mutexLimiter
func (t *T) Take() time.Time

Take returns the time of admission: the time that it read, plus the sleep. maxSlack is below 0 before v0.3.
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.gotime import is_monotonic, unix_ns
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import UNKNOWN, number, per_second, results, whole


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """A slack of s admits s + 1 at once."""
    wait = np.where(r["wait"] == UNKNOWN, 0, whole(r["wait"]))  # no sleep of its clock was observed
    until = unix_ns(r["act_wall"], r["act_ext"])
    period = number(r["period"])
    slack = np.divide(np.abs(number(r["burst"])), period, out=np.full(len(r), np.nan), where=period > 0)
    return {
        "result": results(np.ones(len(r), np.bool_), wait),
        "wait_ns": wait,
        "limit_per_s": per_second(1.0, r["period"]),
        "burst": slack + 1,
        "program_wall_ns": np.where(until != NULL_I64, until - wait, NULL_I64),
        "step_immune": is_monotonic(r["act_wall"]),
    }


_CLOCKS = ("github.com/benbjohnson/clock", "github.com/andres-erbsen/clock", "go.uber.org/ratelimit/internal/clock")
_TOOK = {"act_wall": "ax", "act_ext": "bx"}


def _take(kind: str, program: str, interval: int) -> Function:
    places = {"limiter": "ax", "period": f"limiter+{interval}", "burst": f"limiter+{interval + 8}"}
    return Function(f"(*{kind}).Take", "decision", program, "limiter_uber_took", places, _TOOK, "decisions")


LIBRARY = LimiterLibrary(
    "go.uber.org/ratelimit",
    "go",
    "wall",
    "leaky bucket",
    (Step("none", "none", r"v0\.[12]\..*"), Step("Take sleeps for D", "up to the slack more")),
    Seen(
        module="go.uber.org/ratelimit",
        packages=("go.uber.org/ratelimit",),
        functions=(
            _take("atomicInt64Limiter", "limiter_uber_take", 128),
            _take("atomicLimiter", "limiter_uber_take_pointer", 64),
            _take("mutexLimiter", "limiter_uber_take_mutex", 40),
            _take("limiter", "limiter_uber_take_mutex", 40),
            *(
                Function(
                    "(*clock).Sleep",
                    "sleep",
                    "limiter_uber_sleep",
                    "",
                    {"wait": "bx"},
                    {},
                    "delays of go.uber.org/ratelimit",
                    package=package,
                )
                for package in _CLOCKS
            ),
        ),
        limiter="ratelimit.Limiter",
        read=read,
    ),
    model="leaky bucket, waits",
)
