"""github.com/sethvargo/go-limiter: observed at its memory store.

type store struct { tokens uint64; interval time.Duration; ... }
func (s *store) Take(ctx context.Context, key string) (tokens, remaining, reset uint64, ok bool, err error)

v0.7.0 reads runtime.nanotime, all others the wall clock. Earlier versions need a Go that is too old to be observed:
runtime.walltime is gone since Go 1.17.
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import ALLOWED, number, per_second, results, whole

_MONOTONIC = b"v0.7.0"


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """A key with its own limit (Set, Burst) may also have another interval, which is unknown."""
    results_of = results(r["ok"] != 0, error=r["error"])
    usual, whole_ns = r["granted"] == r["limit"], whole(r["period"])
    return {
        "result": results_of,
        "wait_ns": np.where(results_of == ALLOWED, 0, NULL_I64),
        "limit_per_s": np.where(usual, per_second(number(r["limit"]), r["period"]), np.nan),
        "burst": number(r["granted"]),
        "window_ns": np.where(usual, whole_ns, NULL_I64),
        "remaining": np.where(r["error"] == 0, number(r["tokens"]), np.nan),
        "step_immune": (r["library_version"] == _MONOTONIC).astype(np.int8),
    }


LIBRARY = LimiterLibrary(
    "github.com/sethvargo/go-limiter",
    "go",
    "wall",
    "fixed window",
    (
        Step("none", "none", r"v0\.7\.0"),
        Step("no window ends for D", "a window ends D early: up to a whole limit more"),
    ),
    Seen(
        module="github.com/sethvargo/go-limiter",
        packages=("github.com/sethvargo/go-limiter/memorystore",),
        functions=(
            Function(
                "(*store).Take",
                "decision",
                "limiter_gostore_take",
                "limiter_gostore_took",
                {"limiter": "ax", "key": "di", "key_size": "si", "limit": "limiter+0", "period": "limiter+8"},
                {"granted": "ax", "tokens": "bx", "ok": "di", "error": "si"},
                "decisions",
            ),
        ),
        limiter="memorystore.store",
        read=read,
    ),
)
