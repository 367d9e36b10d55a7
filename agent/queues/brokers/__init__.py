"""Brokers that can be polled: one file a kind, which defines ``BROKER`` (agent/queues/catalogue.py)."""
