"""lua-resty-redis-ratelimit, nginx's limit_req in Redis: a leaky bucket in thousandths of requests, by nginx's clock.
Arguments: rate, burst, now (ms), how long to block.

Replies: state (1 admitted, 2 busy, 3 forbidden) and the excess. Its first versions passed all of it as keys; they count
as a script without a name.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "lua-resty-redis-ratelimit",
        scripts=("fd1d18883f2412cde40adbaa7fb4d8399e907535",),
        keys=1,
        args=4,
        text=r"excess[^}]*\} -- BUSY",
        allowed="reply.0 == 1",
        values={"limit": "arg.0 / 1000", "window_s": "1", "burst": "arg.1 / 1000"},
        step_immune=False,
    ),
)
