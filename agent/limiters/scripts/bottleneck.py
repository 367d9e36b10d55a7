"""Bottleneck of Node: a job is refused at submission, at the high-water mark of the queue. Its other scripts (free,
register, heartbeat ...) have the same keys, and make no decision. Replies: whether the mark was reached, whether the
limiter is blocked, its strategy.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "bottleneck",
        scripts=("f00a66a4159e8488fd6e3b8ccba92a8c602f2062",),
        key=r"b_.+_settings$",
        text=r"return \{reachedHWM, blocked, strategy\}",
        allowed="reply.0 == 0",
        own_keys=True,
    ),
)
