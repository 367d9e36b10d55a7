"""Why something can be wrong: one file per cause, with ``CAUSE`` (agent/correlate/catalogue.py)."""
