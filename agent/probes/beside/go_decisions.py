"""Records of Go limiters' decisions as rows of ``limiter_decision``, by the declarations of their libraries. Pure."""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64
from agent.kernel.wire import decode
from agent.limiters.catalogue import seen
from agent.tables import TABLES

#: By a library's number: its name, what its limiters are called, from which rate on there is no limit.
_NAMES = np.array(list(seen()), "S48")
_LIMITERS = tuple(one.limiter for one in seen().values())
_UNLIMITED = np.array([one.unlimited for one in seen().values()])
_TABLE = TABLES["limiter_decision"]
_ALLOWED, _REFUSED, _DELAYED, CANCELLED = (
    _TABLE.code("result", name) for name in ("allowed", "refused", "delayed", "cancelled")
)

# time.Time (time/time.go): wall has bit 63 where there is a monotonic reading, then seconds since 1885 in 33 bits and nanoseconds
# in 30, and ext is the monotonic reading; else wall is the nanoseconds and ext the seconds since the year 1.
_MONOTONIC, _SECONDS, _NANOSECONDS = np.uint64(1 << 63), np.uint64((1 << 33) - 1), np.uint64((1 << 30) - 1)
_FROM_1885_S, _FROM_YEAR_1_S = 2_682_288_000, 62_135_596_800
_MAX_S = 9_200_000_000


def is_monotonic(wall: np.ndarray) -> np.ndarray:
    """Whether time.Time values (their first words, shape (n,) u64) carry a monotonic reading; bool (n,)."""
    found: np.ndarray = wall & _MONOTONIC != 0
    return found


def unix_ns(wall: np.ndarray, ext: np.ndarray) -> np.ndarray:
    """Wall time of time.Time values, Unix ns, i64 (n,); unknown where that does not fit (the zero time)."""
    since_1885 = ((wall >> np.uint64(30)) & _SECONDS).astype(np.int64) - _FROM_1885_S
    since_year_1 = np.clip(ext.astype(np.int64), -(2**62), 2**62) - _FROM_YEAR_1_S
    seconds = np.where(is_monotonic(wall), since_1885, since_year_1)
    known = np.abs(seconds) < _MAX_S
    whole = np.where(known, seconds, 0) * 1_000_000_000 + (wall & _NANOSECONDS).astype(np.int64)
    return np.where(known, whole, NULL_I64)


def elapsed_ns(to_wall: np.ndarray, to_ext: np.ndarray, wall: np.ndarray, ext: np.ndarray) -> np.ndarray:
    """to - from as Go's Time.Sub has it: by the monotonic readings where both have one; i64 (n,) or unknown."""
    both = is_monotonic(to_wall) & is_monotonic(wall)
    if both.all():
        return to_ext.astype(np.int64) - ext.astype(np.int64)
    end, start = unix_ns(to_wall, to_ext), unix_ns(wall, ext)
    known = both | ((end != NULL_I64) & (start != NULL_I64))
    difference = np.where(both, to_ext.astype(np.int64) - ext.astype(np.int64), end - start)
    return np.where(known, difference, NULL_I64)


def limiter_ids(libraries: np.ndarray, addresses: np.ndarray) -> np.ndarray:
    """``rate.Limiter@0xc000012345`` for each library's number and address, S48 (n,); one process's limiters differ, pid tells processes apart."""
    names = np.empty(len(addresses), "S48")
    for library in np.unique(libraries).tolist():
        mine = libraries == library
        unique, which = np.unique(addresses[mine], return_inverse=True)
        names[mine] = np.array([f"{_LIMITERS[library]}@{a:#x}" for a in unique.tolist()], "S48")[which]
    return names


def _remaining(r: np.ndarray, refused: np.ndarray, unlimited: np.ndarray) -> np.ndarray:
    """Tokens left, f64 (n,). A refusal leaves the limiter's figure as of ``last``: what accrued since is added, as advance() does."""
    tokens, limit = r["tokens"].view("<f8"), r["limit"].view("<f8")
    burst = r["burst"].astype(np.int64).astype(np.float64)
    since = elapsed_ns(r["now_wall"], r["now_ext"], r["last_wall"], r["last_ext"])
    fresh = since == NULL_I64  # never used: Limiter.last is the zero time, and the bucket is full
    with np.errstate(over="ignore", invalid="ignore"):
        accrued = np.where(fresh, burst, np.minimum(burst, tokens + np.maximum(since, 0) / 1e9 * limit))
    left: np.ndarray = np.where(refused, accrued, tokens)
    left[(r["burst"] == ~np.uint64(0)) | np.isnan(limit) | unlimited] = np.nan
    return left


def decided(records: np.ndarray) -> np.ndarray:
    """A row for each record, as of the return from the decision."""
    r = np.ascontiguousarray(records)
    rows = decode(r, "limiter_decision").rows
    ok, reserved = r["ok"] != 0, r["reserved"] != 0
    limit, burst = r["limit"].view("<f8"), r["burst"].astype(np.int64)
    unlimited = limit >= _UNLIMITED[r["library"]]
    wait = np.where(reserved, elapsed_ns(r["act_wall"], r["act_ext"], r["now_wall"], r["now_ext"]), 0)
    delayed = ok & (wait > 0)
    # Without a reservation, wait refuses what is beyond the burst; all else is that its context had ended (rate.go, wait).
    given_up = ~ok & ~reserved & (unlimited | (r["n"].astype(np.int64) <= burst))
    rows["result"] = np.select([given_up, ~ok, delayed], [CANCELLED, _REFUSED, _DELAYED], _ALLOWED)
    rows["wait_ns"] = np.where(ok, np.where(delayed, wait, 0), NULL_I64)
    rows["limiter_id"] = limiter_ids(r["library"], r["limiter"])
    rows["library"] = _NAMES[r["library"]]
    rows["source"] = _TABLE.code("source", "uprobe")
    rows["cost"] = r["n"].astype(np.int64)
    rows["limit_per_s"] = np.where(unlimited, np.nan, limit)
    rows["unlimited"] = np.where(np.isnan(limit), -1, unlimited)  # unknown is a NaN
    rows["burst"] = np.where(r["burst"] == ~np.uint64(0), np.nan, burst.astype(np.float64))
    rows["remaining"] = _remaining(r, ~ok, unlimited)
    rows["program_wall_ns"] = unix_ns(r["now_wall"], r["now_ext"])
    rows["step_immune"] = is_monotonic(r["now_wall"])
    rows["sample_rate"] = 1 / np.maximum(r["every"], 1).astype(np.float64)
    return rows
