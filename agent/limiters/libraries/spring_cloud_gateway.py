"""Spring Cloud Gateway's RedisRateLimiter: observed on Redis's wire. Its script stores Redis's time with each request,
even if that went back.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "spring-cloud-gateway",
    "java",
    "remote wall",
    "token bucket",
    (Step("almost no loss", "up to burst more"),),
)
