"""Spring Cloud Gateway's RedisRateLimiter: a token bucket by Redis's clock (the caller's before 3.0). Arguments: rate
per second, capacity, now or nothing, requested tokens.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "spring-cloud-gateway",
        key=r"request_rate_limiter\.",
        args=4,
        allowed="reply.0 == 1",
        values={"remaining": "reply.1", "limit": "arg.0", "window_s": "1", "burst": "arg.1", "cost": "arg.3"},
        step_immune=False,
    ),
)
