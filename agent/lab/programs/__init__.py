"""The workload: each file is one program (or one in several places), found by its ``PROGRAMS``. It does not depend on
the faults.
"""
