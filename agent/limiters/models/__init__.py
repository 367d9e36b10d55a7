"""Models of limiters: pure functions of times. A file each, with ``MODELS``, found by its presence
(agent/limiters/models/catalogue.py).
"""
