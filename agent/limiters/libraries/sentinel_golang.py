"""github.com/alibaba/sentinel-golang: observed at entry, which every Entry uses. A rule that lets requests wait sleeps
within, by its clock.

func entry(resource string, options *EntryOptions) (*base.SentinelEntry, *base.BlockError)
type EntryOptions struct { resourceType, entryType int32; batchCount uint32; flag int32;
    slotChain *base.SlotChain; ... }
func (t *RealClock) Sleep(d time.Duration)

A resource is a key. Its rules and their limits are in maps that are not read.
"""

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import REFUSED, UNKNOWN, results, whole


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """error is a BlockError with the refusing rule. n has the flag in its upper half."""
    wait = np.where(r["wait"] == UNKNOWN, 0, whole(r["wait"]))  # no sleep of its clock was observed
    results_of = results(r["error"] == 0, wait)
    return {
        "result": results_of,
        "wait_ns": np.where(results_of == REFUSED, NULL_I64, wait),
        "cost": np.where(r["n"] == UNKNOWN, 1.0, (r["n"] & np.uint64(0xFFFFFFFF)).astype(np.float64)),
        "step_immune": np.zeros(len(r), np.int8),
    }


LIBRARY = LimiterLibrary(
    "github.com/alibaba/sentinel-golang",
    "go",
    "wall",
    "sliding window of slots",
    (Step("refuses where D is up to 10 s, admits everything where it is more", "a window is skipped"),),
    Seen(
        module="github.com/alibaba/sentinel-golang",
        packages=("github.com/alibaba/sentinel-golang/api",),
        functions=(
            Function(
                "entry",
                "decision",
                "limiter_sentinel_enter",
                "limiter_sentinel_entered",
                {"limiter": "cx+16", "key": "ax", "key_size": "bx", "n": "cx+8"},
                {"error": "bx"},
                "decisions",
            ),
            Function(
                "(*RealClock).Sleep",
                "sleep",
                "limiter_sentinel_sleep",
                "",
                {"wait": "bx"},
                {},
                "delays of github.com/alibaba/sentinel-golang",
                package="github.com/alibaba/sentinel-golang/util",
            ),
        ),
        limiter="sentinel.SlotChain",
        read=read,
    ),
    model="leap array",
)
