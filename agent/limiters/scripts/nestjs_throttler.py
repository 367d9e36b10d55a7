"""@nest-lab/throttler-storage-redis and its predecessor nestjs-throttler-storage-redis: a counter, and a key that
blocks. Arguments: name, window (ms), limit, ms to block; replies: the count, ms until it expires, whether it is
blocked, for how many ms.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "@nest-lab/throttler-storage-redis",
        second=r"\{.*\}:blocked$",
        keys=2,
        args=4,
        allowed="reply.2 == 0",
        values={"remaining": "arg.2 - reply.0", "limit": "arg.2", "window_ms": "arg.1", "wait_ms": "reply.3"},
        step_immune=False,
    ),
)
