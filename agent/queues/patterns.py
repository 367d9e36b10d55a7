"""Names that the settings choose: as they are, or patterns of the shell."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    return any(letter in name for letter in "*?[")


def is_chosen(name: str, patterns: Collection[str]) -> bool:
    """Whether one of the patterns matches it; without any, all are chosen."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
