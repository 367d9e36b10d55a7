"""resilience4j: known, not seen."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary("resilience4j", "java", "monotonic", "fixed window", (Step("none", "none"),))
