"""github.com/juju/ratelimit: observed at take and takeAvailable, which every call uses, and at the calls that sleep
after it.

type Bucket struct { clock Clock; startTime time.Time; capacity, quantum int64; fillInterval time.Duration;
    mu sync.Mutex; availableTokens, latestTick int64 }
func (tb *Bucket) take(now time.Time, count int64, maxWait time.Duration) (time.Duration, bool)
func (tb *Bucket) takeAvailable(now time.Time, count int64) int64
func (tb *Bucket) Wait(count int64); func (tb *Bucket) WaitMaxDuration(count int64, maxWait time.Duration) bool
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.gotime import is_monotonic, unix_ns
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import UNKNOWN, number, per_second, results, whole


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """limit is the quantum that each period adds. takeAvailable may grant less than requested, which is no refusal. A
    wait is never negative.
    """
    granted = r["granted"] != UNKNOWN
    ok = np.where(granted, r["granted"] != 0, r["ok"] != 0)
    wait = np.where(granted, 0, whole(r["wait"]))
    return {
        "result": results(ok, wait),
        "wait_ns": np.where(ok, np.maximum(wait, 0), NULL_I64),
        "limit_per_s": per_second(number(r["limit"]), r["period"]),
        "burst": number(r["burst"]),
        "remaining": np.where(r["limit"] == UNKNOWN, np.nan, r["tokens"].astype(np.int64)),  # -1 is a debt of one
        "program_wall_ns": unix_ns(r["now_wall"], r["now_ext"]),
        "step_immune": is_monotonic(r["now_wall"]),
    }


_BUCKET = {"limiter": "ax", "burst": "limiter+40", "limit": "limiter+48", "period": "limiter+56"}
_NOW = {"now_wall": "bx", "now_ext": "cx", "n": "si"}

LIBRARY = LimiterLibrary(
    "github.com/juju/ratelimit",
    "go",
    "caller",
    "token bucket",
    (Step("none", "none"),),
    Seen(
        module="github.com/juju/ratelimit",
        packages=("github.com/juju/ratelimit",),
        functions=(
            Function(
                "(*Bucket).take",
                "decision",
                "limiter_juju_take",
                "limiter_juju_took",
                _BUCKET | _NOW,
                {"wait": "ax", "ok": "bx", "tokens": "limiter+72"},
                "decisions",
            ),
            Function(
                "(*Bucket).takeAvailable",
                "decision",
                "limiter_juju_take",
                "limiter_juju_took_available",
                _BUCKET | _NOW,
                {"granted": "ax", "tokens": "limiter+72"},
                "decisions",
            ),
            Function(
                "(*Bucket).Wait",
                "wait",
                "limiter_juju_wait",
                "limiter_juju_waited",
                _BUCKET | {"n": "bx"},
                {},
                "when waits end",
            ),
            Function(
                "(*Bucket).WaitMaxDuration",
                "wait",
                "limiter_juju_wait",
                "limiter_juju_waited",
                _BUCKET | {"n": "bx"},
                {},
                "when waits end",
            ),
        ),
        limiter="ratelimit.Bucket",
        read=read,
    ),
)
