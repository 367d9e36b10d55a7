"""Limiters in Redis that are known: a file each, with ``LIMITERS``, found by being here
(agent/limiters/scripted.py).
"""
