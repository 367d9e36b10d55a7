"""github.com/go-redis/redis_rate: GCRA by Redis's own clock. Arguments: burst, rate, period (s), cost; replies:
granted, remaining, retry after (s, -1), reset after.

The key's prefix is fixed in the library; versions since 8 have the same arguments and replies.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "github.com/go-redis/redis_rate",
        key="rate:",
        keys=1,
        args=4,
        text=r"emission_interval",
        allowed="reply.0 > 0",
        values={
            "remaining": "reply.1",
            "wait_s": "reply.2",
            "burst": "arg.0",
            "limit": "arg.1",
            "window_s": "arg.2",
            "cost": "arg.3",
        },
        prefix=b"rate:",
        step_immune=False,
    ),
)
