"""Bucket4j: known, and told by an adapter. TimeMeter.SYSTEM_MILLISECONDS is its clock by default, nanoTime after
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
