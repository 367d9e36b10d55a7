"""Which messages wait far longer than is usual in their queue: the bar of single polls, with a stated rate of false
alarms.

An age of a waiting message is a fact, not an estimate, so one poll is enough; what it is held against must be. The bar
is the largest of
  - an absolute time, below which nobody cares;
  - ``RATIO`` times the age that one usual poll in ten exceeds, among polls that found any message waiting. Of ages that
    are spread as a log-normal with sigma 1 (one in ten exceeds 3.6 times the median) one poll in 100,000 is beyond, of
    steadier ones far fewer: below one false alarm a day;
  - ``RATIO`` times the mean wait by Little's law, messages waiting over messages taken. It also holds for a queue that
    is so quiet that hardly a poll finds one waiting, and is then high, since one message more than was seen is counted
    as waiting all the time.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.series import Series, quantile

RATIO = 20.0
_SOME = 10  # ages from which one in ten can be told


def bars(series: Series, age: str, count: str, slots: np.ndarray, second: int, warm_s: int) -> np.ndarray:
    """What an age must exceed, beside the absolute time, s; endless where too little is known. count: the metric of how
    many messages waited then.
    """
    skip = 5  # an age that has begun to rise must not raise its own bar
    ages = series.history(age, slots, second, skip)
    waiting, taken = (series.history(metric, slots, second, skip) for metric in (count, "out"))
    seen = np.count_nonzero(~np.isnan(waiting), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (np.nansum(waiting, axis=1) + 1) / np.nansum(taken, axis=1)
        some = np.where(ages > 0, ages, np.nan)
        enough = np.count_nonzero(~np.isnan(some), axis=1) >= _SOME
        usual = np.where(enough, quantile(some, 0.9), 0.0)
    return np.where(seen >= warm_s, RATIO * np.maximum(mean, usual), np.inf)
