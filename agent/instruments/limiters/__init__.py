"""Instances of limiters in programs, for ``go_limiters`` and ``declared_functions``: their probes, sampled if they are
hot; the limiters' names; their records as rows of ``limiter_decision``.
"""
