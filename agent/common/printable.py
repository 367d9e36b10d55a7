"""Makes text from other programs safe for a terminal."""

from __future__ import annotations


def printable(name: str | bytes) -> str:
    """A name from another program as text: bytes that are not UTF-8 become ``\\xff``, control characters ``\\x1b``,
    ``\\n``.
    """
    text = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
    return text if text.isprintable() else "".join(c if c.isprintable() else _code(c) for c in text)


def _code(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
