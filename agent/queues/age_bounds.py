"""An age that is known to be between two bounds, and the columns of ``queue_lag`` that show it. Pure."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

#: Bounds that are closer than this, or than a tenth of the age, are a number with an error. It is more than the time
#: between two polls, so that what is seen from its beginning has a number.
_CLOSE_S = 1.5


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
