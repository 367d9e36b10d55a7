"""github.com/ulule/limiter: observed at its stores, because a limiter's own methods are inlined.

func (store *Store) Get(ctx context.Context, key string, rate limiter.Rate) (limiter.Context, error)
func (store *Store) Increment(ctx context.Context, key string, count int64, rate limiter.Rate) (limiter.Context, error)
type Rate struct { Formatted string; Period time.Duration; Limit int64 }
type Context struct { Limit, Remaining, Reset int64; Reached bool }

No registers are left for Increment's Rate, so it is passed on the stack. Peek and Reset make no decision.
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import ALLOWED, number, per_second, results, whole


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """ok means that the limit is reached."""
    results_of = results(r["ok"] == 0, error=r["error"])
    limit = number(r["burst"])
    return {
        "result": results_of,
        "wait_ns": np.where(results_of == ALLOWED, 0, NULL_I64),
        "limit_per_s": per_second(limit, r["period"]),
        "burst": limit,
        "window_ns": whole(r["period"]),
        "remaining": np.where(r["error"] == 0, number(r["tokens"]), np.nan),
        "step_immune": np.zeros(len(r), np.int8),
    }


_KEY = {"limiter": "ax", "key": "di", "key_size": "si"}
_REGISTERS = {"ok": "di", "tokens": "bx", "error": "si"}

LIBRARY = LimiterLibrary(
    "github.com/ulule/limiter",
    "go",
    "wall",
    "fixed window",
    (Step("a window lasts D longer", "a window ends D early: up to a whole limit more"),),
    Seen(
        module="github.com/ulule/limiter",
        packages=(
            "github.com/ulule/limiter/v3/drivers/store/memory",
            "github.com/ulule/limiter/v3/drivers/store/redis",
        ),
        functions=(
            Function(
                "(*Store).Get",
                "decision",
                "limiter_ulule_get",
                "limiter_ulule_decided",
                _KEY | {"period": "r10", "burst": "r11"},
                _REGISTERS,
                "decisions",
            ),
            Function(
                "(*Store).Increment",
                "decision",
                "limiter_ulule_increment",
                "limiter_ulule_decided",
                _KEY | {"n": "r8", "period": "sp+24", "burst": "sp+32"},
                _REGISTERS,
                "decisions",
            ),
        ),
        limiter="limiter.Store",
        read=read,
    ),
)
