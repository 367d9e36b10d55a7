"""From when a value is no longer what a subject has always had, by a stated rate of false alarms. Pure.

Goes by the worst value of each second of the last two minutes. Between the upper quartile and the 95th percentile the
chance of a value falls by five; that it goes on to fall as a power of the value (which has heavier tails than most
programs) says from where on it is as rare as one second in ``SURE_S``, or in ``SLOW_S``. And it must be twice the third
largest of these seconds, or, while few are known, the largest. None of these is moved by one or two values: a stall
raises no bar for the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SURE_S, SLOW_S = 86400, 600
_BETWEEN = np.log(5.0)
_QUARTER = 0.25
_MOST = 12.0  #: times the 95th percentile: what spreads widely where it is short need not do so where it is long
_EACH, _OUTLIERS = 20, 2  #: of so many seconds one may be an outlier; of all, so many


class Bars(NamedTuple):
    """One value a subject, NaN where nothing was seen. sure: what is beyond it is a symptom by itself; slow: several
    that are beyond it may be; often: twice the third largest.
    """

    sure: np.ndarray
    slow: np.ndarray
    often: np.ndarray


def bars(worst: np.ndarray) -> Bars:
    """worst: of each second that was usual, shape (subjects, seconds), NaN where there is none."""
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
