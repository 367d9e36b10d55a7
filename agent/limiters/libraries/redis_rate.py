"""github.com/go-redis/redis_rate: known, not seen."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "github.com/go-redis/redis_rate",
    "go",
    "remote wall",
    "GCRA",
    (Step("nothing is admitted for D", "up to burst more"),),
    model="GCRA, redis_rate",
)
