"""aiolimiter: known, and told by an adapter. Its clock is the event loop's. Who finds no room waits, nobody is
refused.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary("aiolimiter", "python", "monotonic", "leaky bucket", (Step("none", "none"),))
