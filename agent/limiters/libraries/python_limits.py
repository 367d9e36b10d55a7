"""limits, as slowapi and Flask-Limiter use it: known, and told by an adapter. With a storage elsewhere it is that
host's clock, too.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "limits",
    "python",
    "wall",
    "fixed window, sliding window or sliding log",
    (Step("windows last D longer and refuse once they are spent", "windows end D early: up to a limit more"),),
)
