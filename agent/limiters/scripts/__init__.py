"""Known limiters in Redis: a file each, with ``LIMITERS``, found by its presence (agent/limiters/scripted.py)."""
