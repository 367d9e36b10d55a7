"""Passwords of servers, from a file or a variable of the environment."""

from __future__ import annotations

import os

_MOST_BYTES = 4096


def secret(file: str, variable: str) -> str:
    """The password in this file or variable; empty if neither is set. Raises ValueError, without any value."""
    if variable:
        if not (found := os.environ.get(variable)):
            raise ValueError(f"the variable {variable} is not set")
        return found
    if not file:
        return ""
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read(_MOST_BYTES).rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no text"
        raise ValueError(f"password file: {why}: {file}") from None
