"""resilience4j: known, not observed."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary("resilience4j", "java", "monotonic", "fixed window", (Step("none", "none"),))
