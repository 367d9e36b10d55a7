"""The threshold for messages that wait far longer than is usual in their queue, for single polls, with a stated rate of
false alarms.

The age of a waiting message is measured, not estimated, so one poll is enough. The threshold is the largest of
  - an absolute time, below which a wait does not matter;
  - ``RATIO`` times the 90th percentile of the age, among polls that found any message waiting. Of log-normal ages with
    sigma 1 (the 90th percentile is 3.6 times the median) one poll in 100,000 is beyond, of steadier ones far fewer:
    below one false alarm a day;
  - ``RATIO`` times the mean wait by Little's law, messages waiting over messages taken. It also works for a quiet queue
    where hardly a poll finds a waiting message, and is high then, since one more message than was seen counts as
    waiting all the time.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.series import Series, quantile

RATIO = 20.0
_SOME = 10  # ages needed for a 90th percentile


def bars(series: Series, age: str, count: str, slots: np.ndarray, second: int, warm_s: int) -> np.ndarray:
    """The threshold of an age, apart from the absolute time, s; infinite if too little is known. count: the metric of
    the number of waiting messages.
    """
    skip = 5  # an age that has begun to rise must not raise its own threshold
    ages = series.history(age, slots, second, skip)
    waiting, taken = (series.history(metric, slots, second, skip) for metric in (count, "out"))
    seen = np.count_nonzero(~np.isnan(waiting), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (np.nansum(waiting, axis=1) + 1) / np.nansum(taken, axis=1)
        some = np.where(ages > 0, ages, np.nan)
        enough = np.count_nonzero(~np.isnan(some), axis=1) >= _SOME
        usual = np.where(enough, quantile(some, 0.9), 0.0)
    return np.where(seen >= warm_s, RATIO * np.maximum(mean, usual), np.inf)
