"""Kinds of waits of one process for another, one file each (agent/correlate/walk.py)."""
