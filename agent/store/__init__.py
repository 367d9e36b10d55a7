"""The store: hot segments, sealed segments, and queries over both."""

#: Exit status of the sealer if some segments cannot be read; it has sealed the others.
UNREADABLE = 3
