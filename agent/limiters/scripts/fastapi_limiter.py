"""fastapi-limiter of Python, up to 0.1.6: a counter that expires. Arguments: limit, window (ms); reply: 0, or the ms to
wait. From 0.2 on it is pyrate-limiter.
"""

from agent.limiters.script import RedisLimiter

_VALUES = {"wait_ms": "reply", "limit": "arg.0", "window_ms": "arg.1"}

LIMITERS = (
    RedisLimiter(
        "fastapi-limiter",
        scripts=("a3f9e982197e9e887f6b5dcb7ec273863bb83aad",),
        allowed="reply == 0",
        values=_VALUES,
        step_immune=False,
    ),
    RedisLimiter(
        "fastapi-limiter",
        key="fastapi-limiter:",
        keys=1,
        args=2,
        allowed="reply == 0",
        values=_VALUES,
        own_keys=True,
        step_immune=False,
    ),
)
