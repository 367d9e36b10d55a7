"""redis-gcra of Node. Arguments: now (ms), burst, rate, period (ms), cost; replies: limited, remaining, retry after
(ms), reset after.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "redis-gcra",
        scripts=("868f66d2db4929999a50c5ed5f57985f3cff7461",),
        keys=1,
        args=5,
        text=r"local rate_limit_key = KEYS\[1\]",
        allowed="reply.0 == 0",
        values={
            "remaining": "reply.1",
            "wait_ms": "reply.2",
            "burst": "arg.1",
            "limit": "arg.2",
            "window_ms": "arg.3",
            "cost": "arg.4",
        },
        step_immune=False,
    ),
)
