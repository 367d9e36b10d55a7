"""github.com/go-redis/redis_rate: observed at its calls. A script in Redis decides, by that host's clock.

func (l Limiter) AllowN(ctx context.Context, key string, limit Limit, n int) (*Result, error), and AllowAtMost;
    Limiter is the client, an interface
type Limit struct { Rate, Burst int; Period time.Duration }
type Result struct { Limit Limit; Allowed, Remaining int; RetryAfter, ResetAfter time.Duration }

No register is left for n, so it is passed on the stack.
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import ALLOWED, UNKNOWN, number, per_second, results, whole


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """AllowAtMost may grant less than requested, which is no refusal. An unreachable Redis is an error."""
    results_of = results((r["granted"] != 0) & (r["granted"] != UNKNOWN), error=r["error"])
    return {
        "result": results_of,
        "wait_ns": np.where(results_of == ALLOWED, 0, NULL_I64),
        "limit_per_s": per_second(number(r["limit"]), r["period"]),
        "burst": number(r["burst"]),
        "window_ns": whole(r["period"]),
        "remaining": number(r["tokens"]),
        "step_immune": np.zeros(len(r), np.int8),
    }


_CALL = {"limiter": "bx", "key": "si", "key_size": "r8", "limit": "r9", "burst": "r10", "period": "r11", "n": "sp+8"}
_RESULT = {"granted": "ax+24", "tokens": "ax+32", "error": "bx"}

LIBRARY = LimiterLibrary(
    "github.com/go-redis/redis_rate",
    "go",
    "remote wall",
    "GCRA",
    (Step("nothing is admitted for D", "up to burst more"),),
    Seen(
        module="github.com/go-redis/redis_rate",
        packages=("github.com/go-redis/redis_rate/v10", "github.com/go-redis/redis_rate/v9"),
        functions=tuple(
            Function(
                f"Limiter.{name}",
                "decision",
                "limiter_redis_rate_ask",
                "limiter_redis_rate_decided",
                _CALL,
                _RESULT,
                "decisions",
            )
            for name in ("AllowN", "AllowAtMost")
        ),
        limiter="redis_rate.Client",
        read=read,
    ),
    model="GCRA, redis_rate",
)
