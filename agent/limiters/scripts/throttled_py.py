"""throttled-py of Python, by Redis's clock except for the sliding window. The key names the algorithm. Replies begin
with whether it was limited. Its fixed window is a plain counter.
"""

from agent.limiters.script import RedisLimiter

_NAME, _KEY, _ALLOWED = "throttled-py", r"[^:]+:v\d+:{}:", "reply.0 == 0"

LIMITERS = (
    RedisLimiter(
        _NAME,
        key=_KEY.format("(?:token|leaking)_bucket"),
        keys=1,
        args=3,
        allowed=_ALLOWED,
        values={"remaining": "reply.1", "limit": "arg.0", "window_s": "1", "burst": "arg.1", "cost": "arg.2"},
        step_immune=False,
    ),
    RedisLimiter(
        _NAME,
        key=_KEY.format("gcra"),
        keys=1,
        args=3,
        allowed=_ALLOWED,
        values={
            "remaining": "reply.1",
            "wait_s": "reply.3",
            "limit": "1 / arg.0",
            "window_s": "1",
            "burst": "arg.1",
            "cost": "arg.2",
        },
        step_immune=False,
    ),
    RedisLimiter(_NAME, key=_KEY.format("gcra"), keys=1, args=2, decides=False),
    RedisLimiter(
        _NAME,
        key=_KEY.format("sliding_window"),
        keys=2,
        args=4,
        allowed=_ALLOWED,
        values={
            "remaining": "arg.1 - reply.1",
            "wait_s": "reply.2",
            "limit": "arg.1",
            "window_s": "arg.0",
            "cost": "arg.2",
        },
        step_immune=False,
    ),
)
