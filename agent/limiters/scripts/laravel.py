"""Laravel. DurationLimiter (ThrottleRequestsWithRedis) is a script; arguments: now, now (s), window (s), limit;
replies: whether it was admitted, its end, what is left. RateLimiter (the throttle middleware) reads its counter in PHP,
and counts only admissions: refusals are not observed.
"""

from agent.limiters.script import COUNTING, RedisLimiter

_NAME = "laravel"
#: Creates a key with an expiry, if there is none. RateLimiter creates KEY:timer by it before it counts KEY.
ADDING = "a08c9c69b7c07ae2485190873b90d128a23e502d"
COUNTED = RedisLimiter(_NAME, commands=COUNTING, allowed="1 == 1", step_immune=False)

LIMITERS = (
    RedisLimiter(
        _NAME,
        keys=1,
        args=4,
        text=r"return \{reset\(\), ARGV\[2\] \+ ARGV\[3\], ARGV\[4\] - 1\}",
        allowed="reply.0 == 1",
        values={"remaining": "reply.2", "limit": "arg.3", "window_s": "arg.2"},
        step_immune=False,
    ),
    RedisLimiter(_NAME, scripts=(ADDING,), decides=False),
)
