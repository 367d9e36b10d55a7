"""Bucket4j: reported by an adapter. Its clock is TimeMeter.SYSTEM_MILLISECONDS by default, nanoTime after
withNanosecondPrecision().
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "io.github.bucket4j",
    "java",
    "wall",
    "token bucket",
    (
        Step(
            "nothing is refilled for D, unless withNanosecondPrecision()",
            "up to the capacity more, unless withNanosecondPrecision()",
        ),
    ),
)
