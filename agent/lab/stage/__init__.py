"""The environment of a laboratory run, and its removal: one mechanism per file."""
