"""Ages: by a time stamp of another clock, and such that are known to be between two bounds, with the columns of
``queue_lag`` that show them. Pure.
"""

from __future__ import annotations

from math import isfinite, nan
from typing import NamedTuple

#: Bounds that are closer than this, or than a tenth of the age, are a number with an error. It is more than the time
#: between two polls, so that what is seen from its beginning has a number.
_CLOSE_S = 1.5
#: Unix times before 2001 are no times.
EARLIEST_S = 1_000_000_000
#: Time stamps are of another clock than the one that they are compared with, and may be so much ahead of it.
AHEAD_S = 60


def stamped_age(age_s: float) -> float:
    """An age by a time stamp, in seconds: 0 if the stamp is a little in the future; NaN if it is more than AHEAD_S."""
    return max(0.0, age_s) if age_s >= -AHEAD_S else nan


def age_since(since_s: float, now_s: float) -> float:
    """The same of two Unix times. NaN also if one of them is unknown, or before 2001."""
    return stamped_age(now_s - since_s) if since_s >= EARLIEST_S else nan


class AgeBounds(NamedTuple):
    """Seconds. history: whether both bounds are of our own polls, and not of another clock."""

    least: float
    most: float
    history: bool

    @property
    def close(self) -> bool:
        return isfinite(self.most) and self.most - self.least <= max(_CLOSE_S, 0.1 * self.most)

    @property
    def age_s(self) -> float:
        """The middle of close bounds; else the lower one."""
        return (self.least + self.most) / 2 if self.close else self.least

    def columns(self) -> dict[str, object]:
        """Of the oldest message that was not delivered. ``lag_s`` only if the bounds are close."""
        row: dict[str, object] = {"oldest_undelivered_s": self.age_s}
        if self.close:
            row |= {"lag_s": self.age_s, "lag_basis": "history" if self.history else "log_append"}
        if self.close and self.history:
            row["lag_error_s"] = (self.most - self.least) / 2
        return row

    def text(self) -> str:
        return f"{self.least:.1f} " + (f"to {self.most:.1f} s" if isfinite(self.most) else "s or more")
