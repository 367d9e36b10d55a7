"""The laboratory: faults injected for real into a workload of its own, with the truth beside each recording, and the
score of the findings.

``stage`` is what a run stands on (namespaces, links, cgroups, disks, clean-up), ``programs`` the workload, one file a
program, ``kinds`` the faults, each registered by being there. ``plan`` (pure) says what happens when, ``session`` does
it, ``effect`` (pure) says from the workload's own log whether anybody could feel it, ``score`` (pure) compares the
findings of a replay with the truth.
"""
