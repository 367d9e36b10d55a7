"""async-ratelimiter of Node, used by koa-ratelimit: a set of times. Arguments: now (ms), window, limit, whether it is
only a query; replies: what was left before, when it is full again, limit.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "async-ratelimiter",
        scripts=("ad00ff6f099013f2aea94ed48c220cbf616c6a07",),
        keys=1,
        args=4,
        text=r"local oldest_in_range_result = ",
        allowed="reply.0 > 0",
        values={"remaining": "reply.0 - 1", "limit": "arg.2", "window_ms": "arg.1"},
        step_immune=False,
    ),
)
