"""github.com/throttled/throttled: observed where the GCRA is computed, for any store.

type GCRARateLimiterCtx struct { limit int; delayVariationTolerance, emissionInterval time.Duration;
    store GCRAStoreCtx; maxCASAttemptsLimit int }
func (g *GCRARateLimiterCtx) RateLimitCtx(ctx context.Context, key string, quantity int)
    (bool, RateLimitResult, error)
func (g *GCRARateLimiter) RateLimit(key string, quantity int) (bool, RateLimitResult, error)
    before v2.10, with the same fields; before v2.3, without /v2
type RateLimitResult struct { Limit, Remaining int; ResetAfter, RetryAfter time.Duration }

Its clock is the store's: this host's wall clock for the memory store, the Redis host's for Redis. The store in use is
not known.
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import ALLOWED, number, per_second, results


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """ok means refused."""
    allowed = r["ok"] == 0
    results_of = results(allowed, error=r["error"])
    return {
        "result": results_of,
        "wait_ns": np.where(results_of == ALLOWED, 0, NULL_I64),
        "limit_per_s": per_second(1.0, r["period"]),
        "burst": number(r["burst"]),
        "remaining": np.where(r["error"] == 0, number(r["tokens"]), np.nan),
        "step_immune": np.zeros(len(r), np.int8),
    }


_FIELDS = {"limiter": "ax", "burst": "limiter+0", "period": "limiter+16"}
_LIMITED = {"ok": "ax", "tokens": "cx", "error": "r8"}

LIBRARY = LimiterLibrary(
    "github.com/throttled/throttled",
    "go",
    "wall",
    "GCRA",
    (Step("nothing is admitted for D, once the burst is spent", "up to burst more"),),
    Seen(
        module="github.com/throttled/throttled",
        packages=("github.com/throttled/throttled/v2", "github.com/throttled/throttled"),
        functions=(
            Function(
                "(*GCRARateLimiterCtx).RateLimitCtx",
                "decision",
                "limiter_throttled_limit",
                "limiter_throttled_limited",
                _FIELDS | {"key": "di", "key_size": "si", "n": "r8"},
                _LIMITED,
                "decisions",
            ),
            Function(
                "(*GCRARateLimiter).RateLimit",
                "decision",
                "limiter_throttled_limit_old",
                "limiter_throttled_limited",
                _FIELDS | {"key": "bx", "key_size": "cx", "n": "di"},
                _LIMITED,
                "decisions",
            ),
        ),
        limiter="throttled.GCRARateLimiter",
        read=read,
    ),
    model="GCRA",
)
