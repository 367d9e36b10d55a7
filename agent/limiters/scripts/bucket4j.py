"""Bucket4j on Redis decides in the program and only exchanges a bucket's state here: a write is an admission. A refusal
writes nothing, so it is not observed. If another program changed the state meanwhile, Redis refuses the write, and the
program tries again.
"""

from agent.limiters.script import RedisLimiter

LIMITERS = (
    RedisLimiter(
        "io.github.bucket4j",
        scripts=(
            "c0569386b0382069581dfaa1a8d241140bc0eeb4",
            "1fed031c105d7c0315b3fc2e4a75e697247264f5",
            "535b2fd00a12a23393fe15cf99599ecc51cd3007",
            "9450de540565d89de15092a716555821601f128b",
        ),
        keys=1,
        text=r"redis\.call\('get', KEYS\[1\]\) == ARGV\[1\]|redis\.call\('set', KEYS\[1\], ARGV\[1\], 'nx'",
        allowed="reply == 1",
        step_immune=False,
    ),
)
