"""express-rate-limit of Node: reported by an adapter. Its memory store uses Date.now(), and a timer removes clients
that were idle for two windows.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "express-rate-limit",
    "javascript",
    "wall",
    "fixed window",
    (Step("a window lasts D longer", "a window ends D early: up to a whole limit more"),),
    model="fixed window, from its first request",
)
