"""The script of `tickscope demo` and of the laboratory's limiter, which report their decisions themselves."""

from agent.limiters.script import RedisLimiter

LIMITERS = (RedisLimiter("tickscope demo", scripts=("8f71f0e914d24abeb8141bd27372ec7ce99b16c9",), decides=False),)
