"""Go's build information in binaries: the versions of the toolchain and of the modules.

Layout (debug/buildinfo, cmd/link/internal/ld.buildinfo): 14 bytes of magic, pointer size, flags; since Go 1.18 (flag 2)
two length-prefixed strings follow at +32, before that two pointers to Go strings are at +16. Pure: bytes in, values
out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAGIC = b"\xff Go buildinf:"
HEADER_SIZE = 32
INLINE = 2
#: Bytes that are read of the strings: a binary with 1,000 modules has 80 KB.
MAX_TEXT = 1 << 20
_FRAME = 16


@dataclass(frozen=True)
class BuildInfo:
    """go_version: ``go1.26.8``, possibly followed by experiments. modules: path -> version, empty if not recorded.

    path: the import path of the package main. main: its module. Both empty if not recorded.
    """

    go_version: str
    modules: dict[str, str] = field(default_factory=dict)
    path: str = ""
    main: str = ""

    @property
    def program(self) -> str:
        """The program's name by ``go build``: the last element of its path, or the one before a version; empty if
        unknown.
        """
        elements = self.path.split("/")
        if len(elements) > 1 and re.fullmatch(r"v\d+", elements[-1]):
            elements.pop()
        return "" if self.path == "command-line-arguments" else elements[-1]

    @property
    def minor(self) -> int | None:
        """17 for go1.17.13; None for a version without it."""
        match = re.search(r"\bgo1\.(\d+)", self.go_version)
        return int(match[1]) if match else None


def inline_strings(data: bytes) -> tuple[bytes, bytes]:
    """(version, module text) of the bytes after the header of the inline format; empty if they are cut off."""
    texts = []
    at = 0
    for _ in range(2):
        length = shift = 0
        while at < len(data) and shift < 35:
            byte = data[at]
            at, length, shift = at + 1, length | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        whole = at + length <= len(data)
        texts.append(data[at : at + length] if whole else b"")
        at += length
    return texts[0], texts[1]


def parse(version: bytes, text: bytes) -> BuildInfo:
    """Parses the module text: lines of ``path``, ``mod``, ``dep`` or ``=>`` (a replacement of the line before), path
    and version, separated by tabs.
    """
    modules: dict[str, str] = {}
    named = {"path": "", "mod": ""}
    if len(text) > 2 * _FRAME and text[-_FRAME - 1 : -_FRAME] == b"\n":
        last = ""
        for line in text[_FRAME:-_FRAME].decode("utf-8", "replace").split("\n"):
            kind, *fields = line.split("\t")
            if kind in named and fields:
                named[kind] = fields[0]
            if kind in ("mod", "dep") and len(fields) >= 2:
                last = fields[0]
                modules[last] = fields[1]
            elif kind == "=>" and len(fields) >= 2 and last:
                modules[last] = fields[1]
    return BuildInfo(version.decode("utf-8", "replace"), modules, named["path"], named["mod"])


def package_of(function: bytes) -> bytes:
    """The import path in a function's full name if it begins with a host name, as those of other modules do; else
    empty, also for the compiler's functions of a type (``type:.eq.``, before Go 1.20 ``type..eq.``).
    """
    base = re.split(rb"[(\[{]", function, maxsplit=1)[0]
    slash = base.rfind(b"/")
    path = base[: base.find(b".", slash)] if slash > 0 and b"." in base[slash:] else b""
    if b"." not in path.split(b"/", 1)[0] or b":" in path or path.startswith(b"type.."):
        return b""
    return path.replace(b"%2e", b".")
