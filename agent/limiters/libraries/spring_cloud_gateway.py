"""Spring Cloud Gateway's RedisRateLimiter: known, and seen on Redis's wire. Its script writes Redis's time with each
request, also where that went back.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "spring-cloud-gateway",
    "java",
    "remote wall",
    "token bucket",
    (Step("almost no loss", "up to burst more"),),
)
