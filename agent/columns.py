"""Column types: how one value is stored, and what stands for "unknown".

Every stored number is a signed 64-bit integer or a double, so that one sentinel (``NULL_I64``) or NaN serves all of
them; texts are fixed-width bytes, so that a batch is one contiguous numpy array that can be written and mapped as is.
numpy is imported by who asks for its types: the brokers' process, which does without, has its rows packed by ``form``.
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would bring OpenSSL with it
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

NULL_I64 = -(2**63)
HIST_BUCKETS = 64


@dataclass(frozen=True)
class Column:
    """One column of a table.

    kind: ``i64`` ``f64`` ``bool`` ``str`` ``enum`` ``hist`` ``addr`` ``peer`` or ``json``.
      addr  16 bytes, network order, IPv4 as v4-mapped IPv6 (RFC 4291 2.5.5.2); all zero means unknown.
      peer  an addr followed by a port in host order (2 bytes); all zero means unknown.
      hist  64 u32 counts; bucket i counts [2^i, 2^(i+1)), bucket 0 also 0.
      json  text holding one JSON value.
    unit: ``ns`` ``us`` ``s`` ``bytes`` ``ppb`` ... or empty.
    attribute: name under which OTLP exports it (OpenTelemetry semantic conventions where they exist).
    names: of an enum, its values by code; of a text, the values that are known, where they are few (others may still
    occur).
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""
    attribute: str = ""
    width: int = 0
    names: tuple[str, ...] = field(default=())

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy type of one stored value (a subarray for ``hist``)."""
        import numpy as np

        if self.kind == "hist":
            return np.dtype((np.uint32, (HIST_BUCKETS,)))
        if self.kind in ("str", "json"):
            return np.dtype(f"S{self.width}")
        return np.dtype(
            {"i64": "<i8", "f64": "<f8", "bool": "i1", "enum": "i1", "addr": "V16", "peer": "V18"}[self.kind]
        )

    @property
    def form(self) -> str:
        """The same as a format of ``struct``, little-endian and without padding."""
        if self.kind in ("str", "json"):
            return f"{self.width}s"
        return {
            "i64": "q",
            "f64": "d",
            "bool": "b",
            "enum": "b",
            "hist": f"{HIST_BUCKETS}I",
            "addr": "16s",
            "peer": "18s",
        }[self.kind]

    @property
    def null(self) -> object:
        """The stored value that means "unknown"."""
        return {"i64": NULL_I64, "f64": nan, "bool": -1, "enum": -1, "hist": 0}.get(self.kind, b"")

    def code(self, name: str) -> int:
        """The stored code of an enum's name. Raises ValueError for a name that it does not have."""
        return self.names.index(name)

    def word(self, code: int) -> str:
        """The name of a stored code of an enum; empty where it is not known, or has none here."""
        return self.names[code] if 0 <= code < len(self.names) else ""


def i64(name: str, meaning: str, unit: str = "", attribute: str = "") -> Column:
    return Column(name, "i64", meaning, unit, attribute)


def f64(name: str, meaning: str, unit: str = "") -> Column:
    return Column(name, "f64", meaning, unit)


def boolean(name: str, meaning: str) -> Column:
    return Column(name, "bool", meaning)


def fitted(name: bytes, width: int) -> bytes:
    """A name as a text column of ``width`` bytes holds it: one that is too long ends in a hash of the whole, so that it
    is not taken for another that begins alike.
    """
    if len(name) <= width:
        return name
    return (
        name[: width - 9].decode("utf-8", "ignore").encode() + b"~" + blake2b(name, digest_size=4).hexdigest().encode()
    )


def text(name: str, width: int, meaning: str, attribute: str = "", names: str = "") -> Column:
    return Column(name, "str", meaning, "", attribute, width=width, names=tuple(names.split()))


def enum(name: str, names: str, meaning: str, attribute: str = "") -> Column:
    return Column(name, "enum", meaning, "", attribute, names=tuple(names.split()))


def hist(unit: str) -> Column:
    return Column("hist", "hist", "64 counts; bucket i counts [2^i, 2^(i+1)), bucket 0 also 0", unit)


def addr(name: str, meaning: str, attribute: str = "") -> Column:
    return Column(name, "addr", meaning, "", attribute)


def peer(meaning: str, attribute: str = "") -> Column:
    return Column("peer", "peer", meaning, "", attribute)


def json_text(name: str, width: int, meaning: str) -> Column:
    return Column(name, "json", meaning, width=width)
