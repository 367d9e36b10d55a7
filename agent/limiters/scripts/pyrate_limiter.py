"""pyrate-limiter of Python, its RedisBucket: a set of times, by the caller's clock. Arguments: now (ms), cost, a name,
the number of limits, and for each the start of its window (from 4.0 on; before, its length) and count; reply: which of
them refuses (from 4.0 on as a list), or -1. Limit and window are the first one's.
"""

from agent.limiters.script import RedisLimiter

_NAME, _TEXT = "pyrate_limiter.RedisBucket", r"local space_required = tonumber\(ARGV\[2\]\)"

LIMITERS = (
    RedisLimiter(
        _NAME,
        scripts=("9cab88b1455f88d9ec955a816bb2da7dab402cdb",),
        keys=1,
        text=_TEXT,
        allowed="reply.0 < 0",
        values={"cost": "arg.1", "limit": "arg.5", "window_ms": "arg.0 - arg.4"},
        step_immune=False,
    ),
    RedisLimiter(
        _NAME,
        scripts=("12a3befaf96dc1cd0dc2c2af0160972b6981b685",),
        keys=1,
        text=_TEXT,
        allowed="reply < 0",
        values={"cost": "arg.1", "limit": "arg.5", "window_ms": "arg.4"},
        step_immune=False,
    ),
)
