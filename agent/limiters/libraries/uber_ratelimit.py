"""go.uber.org/ratelimit: known, not seen."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "go.uber.org/ratelimit",
    "go",
    "wall",
    "leaky bucket",
    (Step("Take sleeps for D", "up to the slack more"),),
    model="leaky bucket, waits",
)
