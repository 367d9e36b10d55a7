"""github.com/alibaba/sentinel-golang: known, not seen."""

from agent.limiters.library import LimiterLibrary, Step

LIBRARY = LimiterLibrary(
    "github.com/alibaba/sentinel-golang",
    "go",
    "wall",
    "sliding window of slots",
    (Step("refuses where D is up to 10 s, admits everything where it is more", "a window is skipped"),),
    model="leap array",
)
