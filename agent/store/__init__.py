"""The store: hot segments, sealed ones, and queries over both."""

#: Exit status of the sealer that has sealed all it could, while some segments cannot be read.
UNREADABLE = 3
