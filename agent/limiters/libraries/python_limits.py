"""limits, the library of slowapi and Flask-Limiter: reported by an adapter. With a remote storage it also uses that
host's clock.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "limits",
    "python",
    "wall",
    "fixed window, sliding window or sliding log",
    (Step("windows last D longer and refuse once they are spent", "windows end D early: up to a limit more"),),
)
