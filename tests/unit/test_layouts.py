"""Which OpenSSL a function's code belongs to, in real maps: nobody's copies change what is known of root's, or take all
the room.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.common.fairness import NoPlaceError
from agent.instruments.openssl_layouts import Known, Layouts, OtherCodeError
from agent.kernel import bpf, syscall
from agent.kernel.limits import LAYOUTS, SITES
from agent.targets.asked import Owner

HOST, ROOT, USER, OTHER = Owner(0, 0), Owner(10, 0), Owner(20, 1000), Owner(30, 1001)
CODE = 64


def key(number: int) -> str:
    return number.to_bytes(CODE, "little").hex()


def file(code: int = 1, at: int = 72, version: str = "3.0.17") -> dict[str, Any]:
    """What is found in a file: of whose functions, and where its fields are."""
    return {"keys": [key(2 * code), key(2 * code + 1)], "layout": [at] * 8, "version": version, "soname": "libssl.so.3"}


class Maps:
    """The two maps as bpf/tls_ssl.h has them."""

    def __init__(self) -> None:
        self.fds = [
            syscall.bpf(0, syscall.attributes(struct.pack("<IIII", *sizes)))
            for sizes in ((2, 4, 80, LAYOUTS), (1, CODE, 4, SITES))
        ]
        assert min(self.fds) >= 0
        self.layouts = Layouts(*self.fds)

    def reported(self, code: int = 1) -> tuple[int, str] | None:
        """(where a field is, version) that the kernel side knows of a function; None for a function that it does not
        know.
        """
        raw = bpf.lookup(self.fds[1], bytes.fromhex(key(2 * code)), 4)
        if raw is None:
            return None
        layout = bpf.lookup(self.fds[0], raw, 80)
        assert layout is not None
        return struct.unpack_from("<i", layout)[0], layout[48:].rstrip(b"\0").decode()


@pytest.fixture
def maps() -> Iterator[Maps]:
    one = Maps()
    yield one
    for fd in one.fds:
        os.close(fd)


@pytest.mark.parametrize("owner", [HOST, ROOT])
def test_a_user_cannot_change_what_is_known_of_roots_openssl(maps: Maps, owner: Owner) -> None:
    """Whoever comes first, and also when he is gone again."""
    mine = maps.layouts.add(file(), owner)
    with pytest.raises(OtherCodeError):
        maps.layouts.add(file(at=8), USER)
    assert maps.reported() == (72, "3.0.17")
    maps.layouts.drop(mine)
    assert maps.reported() is None
    his = maps.layouts.add(file(at=8), USER)
    mine = maps.layouts.add(file(), owner)
    assert maps.reported() == (72, "3.0.17")
    maps.layouts.drop(his)
    assert maps.reported() == (72, "3.0.17")
    maps.layouts.drop(mine)
    assert maps.reported() is None


def test_a_copy_of_another_version_goes_and_leaves_the_others(maps: Maps) -> None:
    """The number that it had is used again for something else."""
    first, second = maps.layouts.add(file(), USER), maps.layouts.add(file(version="3.0.18"), OTHER)
    assert maps.reported() == (72, "3.0.17")
    maps.layouts.drop(first)
    maps.layouts.add(file(5, at=16), USER)
    assert maps.reported() == (72, "3.0.18")
    assert maps.reported(5) == (16, "3.0.17")
    maps.layouts.drop(second)
    assert maps.reported() is None


def test_a_copy_without_its_libcrypto_is_known_like_the_whole(maps: Maps) -> None:
    whole = maps.layouts.add(file(), ROOT)
    copy = maps.layouts.add(file(version=""), USER)
    maps.layouts.drop(whole)
    maps.layouts.add(file(5, at=16), ROOT)
    assert maps.reported() == (72, "3.0.17")
    maps.layouts.drop(copy)
    assert maps.reported() is None
    maps.layouts.add(file(version=""), USER)
    assert maps.reported() == (72, "3")


def test_one_user_takes_a_quarter_of_the_functions_and_of_the_kinds(maps: Maps) -> None:
    """And has them back when the files go. Root still has room."""
    kinds = itertools.count(1)

    def filled(make: Callable[[int], dict[str, Any]], most: int) -> list[Known]:
        taken: list[Known] = []
        with pytest.raises(NoPlaceError, match="user 1000's share of"):
            while len(taken) <= most:
                taken.append(maps.layouts.add(make(next(kinds)), USER))
        return taken

    functions = filled(file, SITES)
    assert 2 * len(functions) == SITES // 4
    maps.layouts.add(file(1), USER)  # another file with the same code
    for one in functions:
        maps.layouts.drop(one)
    assert len(filled(lambda n: file(0, version=f"1.{n}"), LAYOUTS)) == LAYOUTS // 4 - 1
    maps.layouts.add(file(9999), ROOT)
    assert maps.reported(9999) == (72, "3.0.17")
