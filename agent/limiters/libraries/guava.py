"""Guava's RateLimiter: reported by an adapter. Its Stopwatch is nanoTime."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "com.google.common.util.concurrent.RateLimiter", "java", "monotonic", "token bucket", (Step("none", "none"),)
)
