"""The kernel side's data of each OpenSSL: the field offsets of an SSL, by the code of its handshake functions.

A user can provide a copy with the same code and apparently other offsets. So the code of a file of root, or of the
host's own, has that file's layout, and any other code that of the first file with it.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import struct
from collections import Counter
from typing import Any, NamedTuple

from agent.common.fairness import NoPlaceError, Places
from agent.kernel import bpf
from agent.kernel.limits import LAYOUTS, SITES
from agent.targets.asked import Owner

#: Byte offsets as in ``struct tls_layout``, and the version.
Layout = tuple[tuple[int, ...], str]


class OtherCodeError(NoPlaceError):
    """The same code belongs to a file with other field offsets."""


class Known(NamedTuple):
    """What one file added, for ``drop``."""

    layout: Layout
    keys: tuple[bytes, ...]
    owner: Owner


class Layouts:
    """The users of each entry of the maps tls_layouts and tls_sites; the last one removes it. A site has its first
    user's layout.
    """

    def __init__(self, layouts_fd: int, sites_fd: int) -> None:
        self._layouts_fd, self._sites_fd = layouts_fd, sites_fd
        self._kinds = Places(LAYOUTS, what="kinds of OpenSSL")
        self._functions = Places(SITES, what="functions of OpenSSL")
        self._numbers: dict[Layout, int] = {}
        self._brought: dict[Layout | bytes, int] = {}
        self._uses: Counter[Layout] = Counter()
        self._sites: dict[bytes, list[Known]] = {}

    def versions(self) -> dict[int, str]:
        """Number of a layout -> version."""
        return {number: version for (_, version), number in self._numbers.items()}

    def add(self, facts: dict[str, Any], owner: Owner) -> Known:
        """Gives the kernel side the code of a file, before its first probe. Raises OSError; NoPlaceError if there are
        too many layouts, or the code belongs to another file.
        """
        keys, offsets = tuple(bytes.fromhex(key) for key in facts["keys"]), tuple(facts["layout"])
        held = [self._sites[key][0].layout for key in keys if key in self._sites]
        if owner.uid and any(other != offsets for other, _ in held):
            raise OtherCodeError(
                errno.EDQUOT, "its code is that of another OpenSSL in use, but its fields are elsewhere"
            )
        if not facts["version"] and held and len(held) == len(keys) and held[0][0] == offsets:
            layout = held[0]  # a copy, without its libcrypto, of a file with a complete layout
        else:
            layout = offsets, (facts["version"] or facts["soname"].rpartition(".so.")[2])[:31]
        known, fresh = Known(layout, keys, owner), layout not in self._numbers
        self._take(known)
        number = self._numbers[layout]
        self._uses[layout] += 1
        for key in keys:
            bisect.insort(self._sites.setdefault(key, []), known, key=lambda one: one.owner.uid != 0)
        try:
            if fresh:
                bpf.update(
                    self._layouts_fd,
                    struct.pack("<I", number),
                    struct.pack(f"<{len(offsets)}i16s32s", *offsets, b"openssl", layout[1].encode()),
                )
            for key in keys:
                self._point(key)
        except OSError:
            self.drop(known)
            raise
        return known

    def _take(self, known: Known) -> None:
        """Takes places for new entries, on the account of the file's owner. Raises NoPlaceError."""
        uid, new = known.owner.uid, [key for key in known.keys if key not in self._sites]
        if why := self._functions.refusal(uid, len(new)):
            raise NoPlaceError(errno.EDQUOT, why)
        if known.layout not in self._numbers:
            self._kinds.take(uid)
            self._numbers[known.layout] = min(set(range(LAYOUTS)).difference(self._numbers.values()))
            self._brought[known.layout] = uid
        self._functions.take(uid, len(new))
        self._brought.update(dict.fromkeys(new, uid))

    def _point(self, key: bytes) -> None:
        bpf.update(self._sites_fd, key, struct.pack("<I", self._numbers[self._sites[key][0].layout]))

    def drop(self, known: Known) -> None:
        """Removes what a released file added."""
        for key in known.keys:
            users = self._sites[key]
            users.remove(known)
            with contextlib.suppress(OSError):  # it may not be there
                if users:
                    self._point(key)
                else:
                    del self._sites[key]
                    self._functions.give_back(self._brought.pop(key))
                    bpf.delete(self._sites_fd, key)
        self._uses[known.layout] -= 1
        if not self._uses[known.layout]:
            del self._uses[known.layout], self._numbers[known.layout]
            self._kinds.give_back(self._brought.pop(known.layout))
