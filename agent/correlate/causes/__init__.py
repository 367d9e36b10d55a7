"""Why something can be wrong: a file a cause, with ``CAUSE`` (agent/correlate/catalogue.py)."""
