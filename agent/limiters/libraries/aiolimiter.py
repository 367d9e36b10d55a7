"""aiolimiter: reported by an adapter. Its clock is the event loop's. A request without room waits; none is refused."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary("aiolimiter", "python", "monotonic", "leaky bucket", (Step("none", "none"),))
