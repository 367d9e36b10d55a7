"""@upstash/ratelimit of Node, whose scripts reach Redis through its HTTP server: three algorithms of one region, by the caller's clock. A limit that was set for a key is in the reply."""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "@upstash/ratelimit",
        scripts=("b2efc02798c8e9b471a10f9b1d5745db89923ff3",),
        args=3,
        text=r'(?s)dynamicLimitKey.*redis\.call\("INCRBY", key, incrementBy\)',
        allowed="reply.0 <= reply.1",
        values={"remaining": "reply.1 - reply.0", "limit": "reply.1", "window_ms": "arg.1", "cost": "arg.2"},
        step_immune=False,
    ),
    RedisLimiter(
        "@upstash/ratelimit",
        scripts=("74740bb3d7792848093cdef586b6b6037c455fd6",),
        args=4,
        text=r'(?s)dynamicLimitKey.*redis\.call\("INCRBY", currentKey, incrementBy\)',
        allowed="reply.0 >= 0",
        values={"remaining": "reply.0", "limit": "reply.1", "window_ms": "arg.2", "cost": "arg.3"},
        step_immune=False,
    ),
    RedisLimiter(
        "@upstash/ratelimit",
        scripts=("d60be5bd3d83482ae229309f1f7425424f891204",),
        args=5,
        text=r'(?s)dynamicLimitKey.*redis\.call\("HSET", key, "refilledAt"',
        allowed="reply.0 >= 0",
        values={"remaining": "reply.0", "burst": "reply.2", "limit": "arg.2", "window_ms": "arg.1", "cost": "arg.4"},
        step_immune=False,
    ),
)
