"""Python's limits on Redis: three strategies, a script each, distinguished by their arguments. The fixed window's limit
is only in the key.

The key is PREFIX:NAMESPACE/IDENTIFIERS.../AMOUNT/MULTIPLES/GRANULARITY. Scripts that only query (moving_window,
sliding_window) make no decision.
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
