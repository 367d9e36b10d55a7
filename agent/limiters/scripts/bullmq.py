"""BullMQ of Node moves jobs by scripts with limits and expiries: their replies are no decisions about a request."""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter("bullmq", text=r"\A\s*--\[\[[\s\S]*?\bInput:[\s\S]*?local rcall = redis\.call", decides=False),
    RedisLimiter("bullmq", key=r".+:wait$", second=r".+:active$", decides=False),
)
