"""Python's limits on Redis: three strategies, a script each, told apart by their arguments. Of the fixed window the
limit stands in the key only.

The key is PREFIX:NAMESPACE/IDENTIFIERS.../AMOUNT/MULTIPLES/GRANULARITY. What only asks (moving_window, sliding_window)
decides nothing.
"""

from agent.limiters.script import RedisLimiter

_KEY = r"[^/]*:.*/(\d+)/(\d+)/(second|minute|hour|day|month|year)"

LIMITERS = (
    RedisLimiter(
        "limits",
        key=_KEY + "$",
        keys=1,
        args=2,
        text=r"incrby",
        allowed="reply <= match.1",
        values={"remaining": "match.1 - reply", "limit": "match.1", "window_s": "arg.0", "cost": "arg.1"},
        own_keys=True,
        step_immune=False,
    ),
    RedisLimiter(
        "limits",
        key=_KEY + "$",
        keys=1,
        args=4,
        text=r"lpush",
        allowed="reply == 1",
        values={"limit": "arg.1", "window_s": "arg.2", "cost": "arg.3"},
        own_keys=True,
        step_immune=False,
    ),
    RedisLimiter(
        "limits",
        key=r"[^/]*:.*/(\d+)/(\d+)/(second|minute|hour|day|month|year)",
        keys=2,
        args=3,
        text=r"pttl",
        allowed="reply == 1",
        values={"limit": "arg.0", "window_s": "arg.1", "cost": "arg.2"},
        own_keys=True,
        step_immune=False,
    ),
)
