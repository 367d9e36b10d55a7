"""How limiters decide, as pure functions of times: a file each, with ``MODELS``, found by being there
(agent/limiters/models/catalogue.py).
"""
