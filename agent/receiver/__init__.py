"""Receives OTLP from programs of this host, in a process of its own: spans and logs of limiters become decisions."""
