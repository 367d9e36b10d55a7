"""nginx limit_req: known, not observed."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "nginx limit_req", "c", "monotonic", "leaky bucket", (Step("none", "none"),), model="leaky bucket"
)
