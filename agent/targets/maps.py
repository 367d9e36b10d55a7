"""The text of /proc/PID/maps: which of the wanted libraries are mapped as code. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PIECE = 1 << 18
_DELETED = b" (deleted)"


@dataclass
class Mapping:
    """A mapped file. span: one of its mappings, as in /proc/PID/map_files; times: the number of its mappings."""

    span: bytes
    device: bytes
    inode: bytes
    path: bytes
    times: int = 1

    @property
    def plain(self) -> bytes:
        """Its path, also where the file has been deleted."""
        return self.path.removesuffix(_DELETED)

    @property
    def paths(self) -> list[str]:
        """What to ask the helper for, in order. A deleted file is asked for by its mapping alone, since its path no
        longer leads to it.
        """
        by_path = [f"root:{self.plain.decode(errors='surrogateescape')}"] if self.plain == self.path else []
        return [*by_path, f"map:{self.span.decode()}"]


#: Any shared library's file name.
LIBRARY = rb"[^/\n]*\.so(?:\.[^/\n ]*)?"


def line_pattern(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """A pattern of lines: code mappings of files with a whole name that matches one of these patterns."""
    return re.compile(
        rb"^(\w+-\w+) r.x\S* \w+ (\S+) (\d+) +(/(?:[^\n]*/)?(?:" + b"|".join(names) + rb")(?: \(deleted\))?)$", re.M
    )


def pieces(text: bytes) -> Iterator[bytes]:
    """The text in pieces of whole lines, each quick to search."""
    at = 0
    while at < len(text):
        end = text.find(b"\n", at + _PIECE) + 1 or len(text)
        yield text[at:end]
        at = end


def collect(found: dict[tuple[bytes, bytes, bytes], Mapping], pattern: re.Pattern[bytes], piece: bytes) -> None:
    """Adds the mappings of a piece to ``found``, by (device, inode, path)."""
    for match in pattern.finditer(piece):
        span, *file = match.groups()
        device, inode, path = file
        known = found.get((device, inode, path))
        if known is None:
            found[device, inode, path] = Mapping(span, device, inode, path)
        else:
            known.times += 1


def companion(text: bytes, path: bytes, stem: bytes, other: bytes) -> bytes:
    """The library that belongs to ``path``: mapped from the same folder, with ``other`` where the name has ``stem``. If
    none is mapped, the path that the name suggests.
    """
    folder, _, name = path.rpartition(b"/")
    found = re.search(re.escape(folder + b"/" + other) + rb"[^/\n]*\.so[^/\n ]*", text)
    return found[0] if found else folder + b"/" + name.replace(stem, other, 1)
