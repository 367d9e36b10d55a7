"""github.com/envoyproxy/ratelimit: known, not observed by uprobes."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "github.com/envoyproxy/ratelimit",
    "go",
    "wall",
    "fixed window",
    (Step("re-enters a spent window and refuses", "a whole limit more for each window boundary"),),
    model="fixed window",
)
