"""OTLP requests that programs of this host send, taken in a process of their own: spans and logs of rate limiters
become decisions.
"""
