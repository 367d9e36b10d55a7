"""Limiter libraries: a file each, with ``LIBRARY``, found by its presence (agent/limiters/catalogue.py). The facts were
measured or read in the libraries' sources.
"""
