"""A small real workload for ``tickscope demo``: programs that know nothing of tickscope, on loopback, removed at the
end.

``session`` is the agent's side; everything else runs in the workload's own processes (``workload`` is their
supervisor).
"""
