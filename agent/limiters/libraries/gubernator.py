"""github.com/gubernator-io/gubernator: known, not observed."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "github.com/gubernator-io/gubernator",
    "go",
    "wall",
    "token bucket or leaky bucket",
    (Step("limits expire D late", "limits reset D early"),),
)
