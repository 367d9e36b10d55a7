"""pyrate-limiter: reported by an adapter. Its clock was time.time() up to version 3 (clocks.py)."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "pyrate-limiter",
    "python",
    "monotonic",
    "sliding log",
    (
        Step("refuses for D once the limit is spent (these versions: wall clock)", "up to a limit more", r"[1-3]\..*"),
        Step("none", "none"),
    ),
)
