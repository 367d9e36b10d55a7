"""@upstash/ratelimit of Node, 2.0, with a private Redis behind an HTTP server: its three single-region algorithms, by
the caller's clock. The fixed window's limit is in the program. Scripts of 2.1 and later have a flag that only Upstash's
servers accept.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "@upstash/ratelimit",
        scripts=("b13943e359636db027ad280f1def143f02158c13",),
        values={"window_ms": "arg.0", "cost": "arg.1"},
        step_immune=False,
    ),
    RedisLimiter(
        "@upstash/ratelimit",
        scripts=("e1391e429b699c780eb0480350cd5b7280fd9213",),
        allowed="reply >= 0",
        values={"remaining": "reply", "limit": "arg.0", "window_ms": "arg.2", "cost": "arg.3"},
        step_immune=False,
    ),
    RedisLimiter(
        "@upstash/ratelimit",
        scripts=("5bece90aeef8189a8cfd28995b479529e270b3c6",),
        allowed="reply.0 >= 0",
        values={"remaining": "reply.0", "burst": "arg.0", "limit": "arg.2", "window_ms": "arg.1", "cost": "arg.4"},
        step_immune=False,
    ),
)
