"""Redisson's RRateLimiter of Java, by the caller's clock. Arguments: cost, now (ms), a random name; reply: nothing, or
the ms to wait. Limit and window are in Redis. A waiting caller (``acquire``) asks again.
"""

from agent.limiters.script import RedisLimiter

_NAME = "org.redisson"

LIMITERS = (
    RedisLimiter(
        _NAME,
        second=r".+:value$",
        keys=5,
        args=3,
        allowed="reply == 0",
        values={"cost": "arg.0", "wait_ms": "reply"},
        own_keys=True,
        step_immune=False,
    ),
    RedisLimiter(
        _NAME,
        scripts=("38980404d0f647f699e5bd8082405d06ec0fef92", "48387f4f898d4f1f8e94c9b80e7595bf60377aa8"),
        text=r"redis\.call\('hsetnx', KEYS\[1\], 'rate', ARGV\[1\]\)",
        decides=False,
    ),
)
