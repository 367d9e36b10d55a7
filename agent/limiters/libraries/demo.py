"""The limiter of `tickscope demo` (agent/demo/limiter_part.py): a script with a sorted set, by the program's wall
clock.
"""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "tickscope demo",
    "python",
    "wall",
    "sliding log",
    (Step("refuses for D once the limit is spent", "up to a limit more"),),
    model="sliding log",
)
