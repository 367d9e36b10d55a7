"""The laboratory: injects real faults into a workload of its own, records the truth beside each recording, and scores
the findings.

``stage`` is the environment of a run (namespaces, links, cgroups, disks, clean-up). ``programs`` is the workload and
``kinds`` are the faults, one file each, found by their presence. ``plan`` (pure) decides what happens when, and
``session`` executes it. ``effect`` (pure) decides from the workload's own log whether a fault had an impact. ``score``
(pure) compares the findings of a replay with the truth.
"""
