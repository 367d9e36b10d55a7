"""What the kernel side of the tls family knows of each OpenSSL: where the fields of an SSL are, by the code of its
handshake functions.

Anybody may have a copy whose code is the same and whose fields seem to be elsewhere: the code of a file of root's, or
of the host's own, is known by that one, and any other code by the file that brought it first.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import struct
from collections import Counter
from typing import Any, NamedTuple

from agent.kernel import bpf
from agent.kernel.limits import LAYOUTS, LAYOUTS_A_USER, LAYOUTS_OTHERS, SITES_A_USER, SITES_OTHERS
from agent.targets.shares import OverShareError, Owner

#: Byte offsets as in ``struct tls_layout``, and the version.
Layout = tuple[tuple[int, ...], str]


class TooManyLayoutsError(OverShareError):
    """More kinds of OpenSSL at a time than the kernel side has room for."""

    remedy = "run fewer different builds of OpenSSL on one host"


class OtherCodeError(OverShareError):
    """The code is that of a file whose fields are elsewhere."""

    remedy = "see docs/limits.md"


class Known(NamedTuple):
    """What one file added, for ``drop``."""

    layout: Layout
    keys: tuple[bytes, ...]
    owner: Owner


class Layouts:
    """Who uses each entry of the maps tls_layouts and tls_sites, which are taken away with the last. A site's first
    user is whose layout it leads to.
    """

    def __init__(self, layouts_fd: int, sites_fd: int) -> None:
        self._layouts_fd, self._sites_fd = layouts_fd, sites_fd
        self._numbers: dict[Layout, int] = {}
        self._uses: Counter[Layout] = Counter()
        self._sites: dict[bytes, list[Known]] = {}
        self._uids: Counter[int] = Counter()

    def versions(self) -> dict[int, str]:
        """Number of a layout -> version."""
        return {number: version for (_, version), number in self._numbers.items()}

    def add(self, facts: dict[str, Any], owner: Owner) -> Known:
        """Tells the kernel side what the code of a file is, before its first probe. Raises OSError; OverShareError
        where there are too many kinds, or the code is another's.
        """
        keys, offsets = tuple(bytes.fromhex(key) for key in facts["keys"]), tuple(facts["layout"])
        held = [self._sites[key][0].layout for key in keys if key in self._sites]
        if owner.uid and any(other != offsets for other, _ in held):
            raise OtherCodeError(
                errno.EDQUOT, "its code is that of another OpenSSL in use, but its fields are elsewhere"
            )
        if not facts["version"] and held and len(held) == len(keys) and held[0][0] == offsets:
            layout = held[0]  # a copy, without its libcrypto beside it, of what is known better
        else:
            layout = offsets, (facts["version"] or facts["soname"].rpartition(".so.")[2])[:31]
        self._check(len(keys) - len(held), owner)
        number, fresh = self._number(layout, owner), layout not in self._numbers
        known = Known(layout, keys, owner)
        self._numbers[layout] = number
        self._uses[layout] += 1
        self._uids[owner.uid] += 1
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

    def _check(self, more: int, owner: Owner) -> None:
        """Raises TooManyLayoutsError where a user, or all but root, would have too many sites."""
        uids = Counter(users[0].owner.uid for users in self._sites.values())
        if owner.uid and more and uids[owner.uid] + more > SITES_A_USER:
            raise TooManyLayoutsError(
                errno.EDQUOT, f"this user has {SITES_A_USER} different functions of OpenSSL in use already"
            )
        if owner.uid and more and uids.total() - uids[0] + more > SITES_OTHERS:
            raise TooManyLayoutsError(
                errno.EDQUOT, f"all users but root have {SITES_OTHERS} different functions of OpenSSL in use already"
            )

    def _number(self, layout: Layout, owner: Owner) -> int:
        """The highest for root, the lowest for the others, who may not have all."""
        if layout in self._numbers:
            return self._numbers[layout]
        if owner.uid and self._uids[owner.uid] >= LAYOUTS_A_USER:
            raise TooManyLayoutsError(errno.EDQUOT, f"this user has {LAYOUTS_A_USER} kinds of OpenSSL in use already")
        most = LAYOUTS_OTHERS if owner.uid else LAYOUTS
        free = set(range(most)).difference(self._numbers.values())
        if not free:
            raise TooManyLayoutsError(
                errno.EDQUOT, f"{most} different kinds of OpenSSL are in use on this host already"
            )
        return min(free) if owner.uid else max(free)

    def _point(self, key: bytes) -> None:
        bpf.update(self._sites_fd, key, struct.pack("<I", self._numbers[self._sites[key][0].layout]))

    def drop(self, known: Known) -> None:
        """A file is let go of."""
        for key in known.keys:
            users = self._sites[key]
            users.remove(known)
            with contextlib.suppress(OSError):  # it may never have got there
                if users:
                    self._point(key)
                else:
                    del self._sites[key]
                    bpf.delete(self._sites_fd, key)
        self._uses[known.layout] -= 1
        self._uids[known.owner.uid] -= 1
        if not self._uses[known.layout]:
            del self._uses[known.layout], self._numbers[known.layout]
