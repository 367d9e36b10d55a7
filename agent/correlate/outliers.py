"""The threshold above which a value is unusual for its subject, with a stated rate of false alarms. Pure.

It is based on the worst value of each second of the last two minutes. From the upper quartile to the 95th percentile
the probability falls by a factor of five. It is extrapolated as a power law, which has heavier tails than most
programs, to the value that one second in ``SURE_S``, or in ``SLOW_S``, exceeds. The threshold is also at least twice
the third largest of these seconds or, while few are known, the largest. One or two values move none of these, so a
stall does not raise the threshold for the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SURE_S, SLOW_S = 86400, 600
_BETWEEN = np.log(5.0)
_QUARTER = 0.25
_MOST = 12.0  # times the 95th percentile: short times that vary widely do not imply that long ones do
_EACH, _OUTLIERS = 20, 2  # one in so many seconds may be an outlier; of all, so many


class Bars(NamedTuple):
    """One value per subject, NaN without data. sure: one value beyond it is a symptom; slow: several values beyond it
    may be one; often: twice the third largest.
    """

    sure: np.ndarray
    slow: np.ndarray
    often: np.ndarray


def bars(worst: np.ndarray) -> Bars:
    """worst: of each usual second, shape (subjects, seconds), NaN without one."""
    ordered = np.sort(worst, axis=1)  # NaN sorts last
    last = np.count_nonzero(~np.isnan(worst), axis=1) - 1

    def ranked(rank: np.ndarray) -> np.ndarray:
        at = np.clip(rank, 0, worst.shape[1] - 1)
        return np.asarray(np.take_along_axis(ordered, at[:, None], axis=1)[:, 0])

    odd = (last + 1 + _EACH // 2) // _EACH
    quarter, high = ranked(np.ceil(0.75 * last).astype(np.int64)), ranked(last - odd)
    often = 2 * ranked(last - np.minimum(odd, _OUTLIERS))
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.where(quarter > 0, np.log(high / quarter), 0.0) / _BETWEEN
    sure, slow = (
        np.minimum(quarter * np.exp(fall * np.log(_QUARTER * seconds)), _MOST * high) for seconds in (SURE_S, SLOW_S)
    )
    return Bars(np.fmax(sure, often), slow, often)
