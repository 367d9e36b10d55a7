"""redis-cell, a module: CL.THROTTLE KEY MAX_BURST COUNT PERIOD [QUANTITY]. Replies: limited, limit, remaining, retry
after (s, -1), reset after.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "redis-cell",
        commands=("CL.THROTTLE",),
        allowed="reply.0 == 0",
        values={
            "remaining": "reply.2",
            "wait_s": "reply.3",
            "burst": "reply.1",
            "limit": "arg.1",
            "window_s": "arg.2",
            "cost": "arg.3",
        },
        step_immune=False,
    ),
)
