"""BullMQ of Node moves jobs by scripts that know of limits and ends: what they answer is no decision about a
request.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter("bullmq", text=r"\A\s*--\[\[[\s\S]*?\bInput:[\s\S]*?local rcall = redis\.call", decides=False),
    RedisLimiter("bullmq", key=r".+:wait$", second=r".+:active$", decides=False),
)
