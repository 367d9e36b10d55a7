"""rate-limiter-flexible of Node: a counter that expires. Arguments: cost, seconds until it expires; since 5.0 also
points and seconds of the limiter, which it compares; replies: the count, ms until it expires. ioredis sends the
script's hash, the redis package its text each time.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "rate-limiter-flexible",
        scripts=("a1de965f42e177aa339706bd580f049065eca79a",),
        keys=1,
        text=r"local consumed = redis\.call\('incrby', KEYS\[1\], ARGV\[1\]\)",
        allowed="reply.0 <= arg.2",
        values={"remaining": "arg.2 - reply.0", "limit": "arg.2", "window_s": "arg.3", "cost": "arg.0"},
        step_immune=False,
    ),
)
