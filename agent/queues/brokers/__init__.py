"""Brokers that can be polled: a file a kind, with ``BROKER`` (agent/queues/catalogue.py)."""
