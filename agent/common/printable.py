"""What others wrote, made fit for a terminal."""

from __future__ import annotations


def printable(name: str | bytes) -> str:
    """A name that others chose, for people: bytes that are not UTF-8 as ``\\xff``, and so whatever would act on a
    terminal (``\\x1b``, ``\\n``).
    """
    text = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
    return text if text.isprintable() else "".join(c if c.isprintable() else _code(c) for c in text)


def _code(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
