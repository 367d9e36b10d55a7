"""rate-limit-redis, the store of express-rate-limit: a counter that expires. Argument: the window in ms; replies: the
count, ms until it expires. The limit is in the program.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "rate-limit-redis",
        scripts=("895b92e1712734e1b464999be23953485475357b",),
        keys=1,
        args=1,
        text=r"""redis\.call\("SET", KEYS\[1\], 1, "PX", windowMs\)""",
        values={"window_ms": "arg.0"},
        step_immune=False,
    ),
)
