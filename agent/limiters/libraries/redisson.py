"""Redisson's RRateLimiter: observed on Redis's wire."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "org.redisson",
    "java",
    "wall",
    "sliding log",
    (Step("refuses for D once the limit is spent", "up to a limit more"),),
)
