"""Instances of limiters in programs, as ``go_limiters`` and ``declared_functions`` find them: their probes, sampled
where they are hit too often; what their limiters are called; their records as rows of ``limiter_decision``.
"""
