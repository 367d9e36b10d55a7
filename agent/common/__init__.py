"""What every room may use: values as text and back, clocks, addresses, a protocol. Imports nothing of the agent but its
errors; small processes use it.
"""
