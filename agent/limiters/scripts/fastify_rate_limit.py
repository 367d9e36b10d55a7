"""@fastify/rate-limit of Node: a counter that expires. Arguments: window (ms), limit, and the treatment of requests
above it; replies: the count, ms until it expires. Its other script only reads.
"""

from agent.limiters.script import RedisLimiter

_NAME, _KEY = "@fastify/rate-limit", "fastify-rate-limit-"
_VALUES = {"remaining": "arg.1 - reply.0", "limit": "arg.1", "window_ms": "arg.0"}

LIMITERS = (
    RedisLimiter(_NAME, scripts=("4c7d9ef62b3d4f8efd8d11d5d2fd1a56b1e723bc",), decides=False),
    RedisLimiter(
        _NAME,
        scripts=("b8a19d47785922bb04e7a9fdb49e90d89be1b8af",),
        keys=1,
        args=4,
        text=r"local continueExceeding = ARGV\[3\]",
        allowed="reply.0 <= arg.1",
        values=_VALUES,
        step_immune=False,
    ),
    RedisLimiter(
        _NAME, key=_KEY, keys=1, args=4, allowed="reply.0 <= arg.1", values=_VALUES, own_keys=True, step_immune=False
    ),
)
