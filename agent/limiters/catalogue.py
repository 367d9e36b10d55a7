"""Known limiter libraries, by what their clock is and what a step of the wall clock does to them. Data.

Measured or read in their sources; back and forward are what a step by D does to a limiter that is in use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A limiter library.

    library: as in limiter_decision.library; versions: a regular expression of the versions that it holds for; symbols: functions in
    which its decisions are made; clock: ``caller`` (the caller's time.Time: monotonic unless stripped), ``wall``, ``remote wall``
    (of the host that keeps the state) or ``monotonic``; probed: the agent sees its decisions by uprobes.
    """

    library: str
    language: str
    clock: str
    back: str
    forward: str
    versions: str = ".*"
    symbols: tuple[str, ...] = ()
    probed: bool = False


_RATE = ("golang.org/x/time/rate.(*Limiter).reserveN", "golang.org/x/time/rate.(*Limiter).wait")

CATALOGUE = (
    Library("golang.org/x/time/rate", "go", "caller", "almost no loss", "up to burst more", r"v0\.0\.0-.*|v0\.1\..*", _RATE, probed=True),
    Library("golang.org/x/time/rate", "go", "caller", "nothing is admitted for D once the tokens are spent", "up to burst more",
            symbols=_RATE, probed=True),
    Library("go.uber.org/ratelimit", "go", "wall", "Take sleeps for D", "up to the slack more",
            symbols=("go.uber.org/ratelimit.(*atomicInt64Limiter).Take",)),
    Library("github.com/go-redis/redis_rate", "go", "remote wall", "nothing is admitted for D", "up to burst more",
            symbols=("github.com/go-redis/redis_rate/v10.(*Limiter).AllowN",)),
    Library("github.com/alibaba/sentinel-golang", "go", "wall", "refuses where D is up to 10 s, admits everything where it is more",
            "a window is skipped", symbols=("github.com/alibaba/sentinel-golang/api.Entry",)),
    Library("github.com/envoyproxy/ratelimit", "go", "wall", "re-enters a spent window and refuses", "a whole limit more for each window boundary"),
    Library("github.com/gubernator-io/gubernator", "go", "wall", "limits expire D late", "limits reset D early"),
    Library("resilience4j", "java", "monotonic", "none", "none"),
    Library("nginx limit_req", "c", "monotonic", "none", "none"),
)


def look_up(library: str, version: str = "") -> Library | None:
    """What is known of a library; of several entries the first that its version matches, for an unknown version the last."""
    entries = [one for one in CATALOGUE if one.library == library]
    return next((one for one in entries if version and re.fullmatch(one.versions, version)), entries[-1] if entries else None)
