"""express-rate-limit of Node: known, and told by an adapter. Its store in memory goes by Date.now(), and forgets who
has been away for two windows by a timer.
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
