"""golang.org/x/time/rate and copies of it: observed at reserveN, where each decision is made, and at wait, which can
refuse before it calls reserveN.

type Limiter struct { mu sync.Mutex; limit Limit; burst int; tokens float64; last time.Time; lastEvent time.Time }
func (lim *Limiter) reserveN(t time.Time, n int, maxFutureReserve time.Duration) Reservation
type Reservation struct { ok bool; lim *Limiter; tokens int; timeToAct time.Time; limit Limit }
func (r *Reservation) CancelAt(t time.Time)
func (lim *Limiter) wait(ctx context.Context, n int, t time.Time, newTimer func(...)) error

Until May 2020 Limiter began with limit and burst, and mu was third. Until 2022 WaitN was today's wait, and before 2019
waitN.
"""

import sys

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.gotime import elapsed_ns, is_monotonic, unix_ns
from agent.limiters.library import Function, LimiterLibrary, Seen, Step
from agent.limiters.reading import CANCELLED, UNKNOWN, number, results

_INF = sys.float_info.max  # rate.Inf


def read(r: np.ndarray) -> dict[str, np.ndarray]:
    """A refusal leaves the limiter's tokens as of ``last``. What accrued since is added, as advance() does. If the
    caller's time was not observed, it is ``last`` after an admission, and unknown after a refusal.
    """
    ok, reserved = r["ok"] != 0, r["reserved"] != 0
    limit, tokens, burst = r["limit"].view("<f8"), r["tokens"].view("<f8"), number(r["burst"])
    unlimited = limit >= _INF
    unseen = (r["now_wall"] == UNKNOWN) & (r["now_ext"] == UNKNOWN)
    now_wall, now_ext = (
        np.where(unseen & ok, np.where(unlimited, r[f"act_{word}"], r[f"last_{word}"]), r[f"now_{word}"])
        for word in ("wall", "ext")
    )
    unseen &= ~ok
    wait = np.where(reserved, elapsed_ns(r["act_wall"], r["act_ext"], now_wall, now_ext), 0)
    # Without a reservation, wait refuses requests above the burst; otherwise its context had ended (rate.go, wait).
    given_up = ~ok & ~reserved & (unlimited | (r["n"].astype(np.int64) <= r["burst"].astype(np.int64)))
    since = elapsed_ns(now_wall, now_ext, r["last_wall"], r["last_ext"])
    fresh = since == NULL_I64  # never used: Limiter.last is the zero time, and the bucket is full
    with np.errstate(over="ignore", invalid="ignore"):
        accrued = np.where(fresh, burst, np.minimum(burst, tokens + np.maximum(since, 0) / 1e9 * limit))
    left = np.where(ok, tokens, accrued)
    left[(r["burst"] == UNKNOWN) | np.isnan(limit) | unlimited | unseen] = np.nan
    return {
        "result": np.where(given_up, CANCELLED, results(ok, wait)),
        "wait_ns": np.where(ok, np.maximum(wait, 0), NULL_I64),
        "limit_per_s": np.where(unlimited, np.nan, limit),
        "unlimited": np.where(np.isnan(limit), -1, unlimited),  # unknown is a NaN
        "burst": burst,
        "remaining": left,
        "program_wall_ns": np.where(unseen, NULL_I64, unix_ns(now_wall, now_ext)),
        "step_immune": is_monotonic(np.where(unseen, r["last_wall"], now_wall)),
    }


_RESERVE = {"limiter": "ax", "now_wall": "bx", "now_ext": "cx", "n": "si"}
_RESERVED = {
    "ok": "ax",
    "act_wall": "di",
    "act_ext": "si",
    "tokens": "limiter+24",
    "last_wall": "limiter+32",
    "last_ext": "limiter+40",
}
_WAIT = {"limiter": "ax", "n": "di", "now_wall": "si", "now_ext": "r8"}
_WAIT_N, _WITHIN = {"limiter": "ax", "n": "di"}, ("(*Limiter).wait", "(*Limiter).waitN")
_OLDER = r"v0\.0\.0-(?:201|20200[1-4])"
_NEWER = f"(?!{_OLDER})"
_EARLY = "waits that are refused before a reservation"
_NOW, _OLD = {"limit": "limiter+8", "burst": "limiter+16"}, {"limit": "limiter+0", "burst": "limiter+8"}

LIBRARY = LimiterLibrary(
    "golang.org/x/time/rate",
    "go",
    "caller",
    "token bucket",
    (
        Step("almost no loss", "up to burst more", r"v0\.0\.0-.*|v0\.[12]\..*", "token bucket, first generation"),
        Step("nothing is admitted for D once the tokens are spent", "up to burst more", model="token bucket"),
    ),
    Seen(
        module="golang.org/x/time",
        packages=("golang.org/x/time/rate",),
        functions=(
            Function(
                "(*Limiter).reserveN",
                "decision",
                "limiter_reserve",
                "limiter_reserved",
                _RESERVE | _NOW,
                _RESERVED,
                "decisions",
                lock=0,
                versions=_NEWER,
                argument_bytes=48,
            ),
            Function(
                "(*Limiter).reserveN",
                "decision",
                "limiter_reserve_2019",
                "limiter_reserved",
                _RESERVE | _OLD,
                _RESERVED,
                "decisions",
                lock=16,
                versions=_OLDER,
                argument_bytes=48,
            ),
            Function(
                "(*Limiter).wait",
                "wait",
                "limiter_wait",
                "limiter_waited",
                _WAIT | _NOW,
                {"error": "ax"},
                _EARLY,
                lock=0,
                argument_bytes=64,
            ),
            Function(
                "(*Limiter).waitN",
                "wait",
                "limiter_wait_n_2019",
                "limiter_waited",
                _WAIT_N | _OLD,
                {"error": "ax"},
                _EARLY,
                lock=16,
                argument_bytes=32,
            ),
            Function(
                "(*Limiter).WaitN",
                "wait",
                "limiter_wait_n",
                "limiter_waited",
                _WAIT_N | _NOW,
                {"error": "ax"},
                _EARLY,
                lock=0,
                argument_bytes=32,
                unless=_WITHIN,
            ),
            Function(
                "(*Limiter).WaitN",
                "wait",
                "limiter_wait_n_2019",
                "limiter_waited",
                _WAIT_N | _OLD,
                {"error": "ax"},
                _EARLY,
                lock=16,
                argument_bytes=32,
                unless=_WITHIN,
            ),
            Function(
                "(*Reservation).CancelAt",
                "cancel",
                "limiter_cancel",
                "",
                {"limiter": "ax+8", "n": "ax+16"},
                {},
                "reservations that are given back",
                argument_bytes=32,
            ),
        ),
        limiter="rate.Limiter",
        read=read,
        copies=True,
    ),
)
