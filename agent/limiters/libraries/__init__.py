"""Limiter libraries: a file each, with ``LIBRARY``, found by being there (agent/limiters/catalogue.py). Measured, or
read in their sources.
"""
