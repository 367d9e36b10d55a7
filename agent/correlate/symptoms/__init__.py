"""What can be wrong: one file per symptom, with ``SYMPTOM`` (agent/correlate/catalogue.py)."""
