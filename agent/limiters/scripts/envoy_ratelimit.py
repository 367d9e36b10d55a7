"""Envoy's rate limit service: INCRBY and EXPIRE in one pipeline, of keys that end with the second in which their window
began. The limit is in its own settings: the result is unknown, unless yours declare the limit
(``redis_limiter_scripts``).
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "github.com/envoyproxy/ratelimit",
        commands=("INCRBY",),
        key=r".+_\d{9,10}$",
        values={"cost": "arg.0"},
        step_immune=False,
    ),
)
