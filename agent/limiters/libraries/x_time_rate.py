"""golang.org/x/time/rate: seen at reserveN, where each decision is made, and at wait, which can refuse before it gets there.

type Limiter struct { mu sync.Mutex; limit Limit; burst int; tokens float64; last time.Time; lastEvent time.Time }
func (lim *Limiter) reserveN(t time.Time, n int, maxFutureReserve time.Duration) Reservation
type Reservation struct { ok bool; lim *Limiter; tokens int; timeToAct time.Time; limit Limit }
func (lim *Limiter) wait(ctx context.Context, n int, t time.Time, newTimer func(...)) error
"""

import sys

from agent.limiters.library import Function, LimiterLibrary, Refused, Seen, Step

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
            Function("(*Limiter).reserveN", "decision", "limiter_reserve", "limiter_reserved",
                     {"limiter": "ax", "now_wall": "bx", "now_ext": "cx", "n": "si"}, {"ok": "ax", "act_wall": "di", "act_ext": "si"}, "decisions"),
            Function("(*Limiter).wait", "wait", "limiter_wait", "limiter_waited",
                     {"limiter": "ax", "n": "di", "now_wall": "si", "now_ext": "r8"}, {"error": "ax"}, "waits that are refused before a reservation"),
        ),
        fields={"limit": 8, "burst": 16, "tokens": 24, "last_wall": 32, "last_ext": 40},
        limiter="rate.Limiter",
        unlimited=sys.float_info.max,  # rate.Inf
        source="limiter.bpf.c",
        refused=(Refused(r"v0\.0\.0-(201\d|2020(0[1-5]))", "has another struct layout"),),  # another order of the first fields
    ),
)  # fmt: skip
