"""What can be wrong: a file a symptom, with ``SYMPTOM`` (agent/correlate/catalogue.py)."""
