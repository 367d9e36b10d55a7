"""Helpers for every package: text forms of values, clocks, addresses, a protocol. Imports only the agent's errors,
because small processes use it.
"""
