"""The ELF reader on real files, and on files made to hurt it."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.binaries.elf import Elf, ElfError, Symbol
from agent.binaries.openssl import analyse, version_text
from agent.kernel.attaching import executable_ranges

TRUE = Path("/bin/true")
LIBC = next(Path("/usr/lib").glob("*-linux-gnu/libc.so.6"))
LIBSSL = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.*"))))
NAMES = {b"TLS_method", b"SSL_free", b"main", b"malloc"}


@contextmanager
def opened(content: bytes | Path, budget: int = 64 << 20) -> Iterator[Elf]:
    with tempfile.TemporaryFile() if isinstance(content, bytes) else content.open("rb") as file:
        if isinstance(content, bytes):
            file.write(content)
            file.flush()
        yield Elf(file.fileno(), budget)


def use(elf: Elf) -> None:
    """Everything that the agent does with a file."""
    for vaddr in [s.value for s in elf.symbols(NAMES).values()] + [0, 4096, (1 << 64) - 8]:
        try:
            elf.read(vaddr, 16)
            elf.pointers([(vaddr, 16)])
        except ElfError:
            pass
    elf.section(".dynamic")
    assert isinstance(elf.build_id + elf.soname, str)
    analyse(elf)
    version_text(elf)


def broken(content: bytes) -> str:
    """How a hostile file is refused; empty where it is not."""
    try:
        with opened(content, 16 << 20) as elf:
            use(elf)
    except ElfError as error:
        return str(error)
    return ""


def test_symbols_as_readelf_lists_them() -> None:
    listing = subprocess.run(["readelf", "-W", "--dyn-syms", LIBSSL], capture_output=True, text=True, check=True).stdout
    expected = {}
    for line in listing.splitlines():
        words = line.split()
        if len(words) >= 8 and words[3] == "FUNC" and words[6] != "UND":
            expected[words[7].split("@")[0].encode()] = Symbol(int(words[1], 16), int(words[2]))
    assert len(expected) > 400
    with opened(LIBSSL) as elf:
        assert elf.symbols(expected) == expected
        assert elf.symbols({b"malloc", b"no_such_name", b"LS_method"}) == {}


def test_addresses_names_and_relocations() -> None:
    with opened(LIBSSL) as elf:
        assert elf.soname == LIBSSL.name
        listing = subprocess.run(["readelf", "-nW", LIBSSL], capture_output=True, text=True, check=True).stdout
        assert f"Build ID: {elf.build_id}" in listing and elf.build_id
        text = elf.section_header(".text")
        assert text is not None
        assert elf.file_offset(int(text["addr"])) == int(text["offset"])
        assert elf.read(int(text["addr"]), 64) == elf.section(".text")[:64]
        relative = [
            line.split()
            for line in subprocess.run(
                ["readelf", "-rW", LIBSSL], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            if "_RELATIVE" in line
        ]
        assert len(relative) > 1000
        for words in relative[::97]:
            assert elf.pointers([(int(words[0], 16), 1)])[0].tolist() == [int(words[3], 16)]


def test_not_what_it_should_be() -> None:
    good = TRUE.read_bytes()
    assert "not an ELF" in broken(b"#!/bin/sh\n" + bytes(100))
    assert "outside the file" in broken(b"")
    assert "64-bit" in broken(good[:4] + b"\x01" + good[5:])
    assert "little-endian" in broken(good[:5] + b"\x02" + good[6:])
    assert "odd program headers" in broken(good[:56] + b"\xff\xff" + good[58:])
    assert "odd program headers" in broken(good[:54] + b"\x20\x00" + good[56:])
    assert "odd section headers" in broken(good[:60] + b"\xff\xff" + good[62:])


def test_more_to_read_than_allowed() -> None:
    with pytest.raises(ElfError, match="more to read"), opened(LIBC, budget=100_000) as elf:
        elf.symbols({b"malloc"})


def test_huge_sections_cost_no_more_than_the_file_allows() -> None:
    """A sparse file of a terabyte whose string table claims all of it."""
    content = bytearray(LIBSSL.read_bytes())
    shoff, count = struct.unpack_from("<Q", content, 40)[0], struct.unpack_from("<H", content, 60)[0]
    for at in range(shoff, shoff + 64 * count, 64):
        if struct.unpack_from("<I", content, at + 4)[0] in (2, 3, 11):
            struct.pack_into("<Q", content, at + 32, 1 << 40)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.truncate(1 << 41)
        elf = Elf(file.fileno(), 8 << 20)
        assert elf.symbols([]) == {}
        with pytest.raises(ElfError, match="more to read"):
            elf.symbols({b"no_such_name"})


def test_a_name_that_occurs_a_million_times() -> None:
    content = bytearray(LIBSSL.read_bytes())
    with opened(LIBSSL) as elf:
        strings = elf.section_header(".dynstr")
        assert strings is not None
        at = int(strings["offset"])
    index = next(
        i
        for i in range(struct.unpack_from("<H", content, 60)[0])
        if struct.unpack_from("<Q", content, struct.unpack_from("<Q", content, 40)[0] + 64 * i + 24)[0] == at
    )
    header = struct.unpack_from("<Q", content, 40)[0] + 64 * index
    struct.pack_into("<QQ", content, header + 24, len(content), 8_000_000)
    content += b"TLS_method\0" * 800_000
    assert "too often" in broken(bytes(content))


def test_truncated_anywhere() -> None:
    for path in (TRUE, LIBSSL):
        content = path.read_bytes()
        refused = [
            broken(content[:n]) for n in (*range(0, 4096, 61), *range(4096, len(content), max(1, len(content) // 150)))
        ]
        assert all(refused[:60])


def test_a_file_that_shrinks_while_it_is_read() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(LIBSSL.read_bytes())
        file.flush()
        elf = Elf(file.fileno())
        os.ftruncate(file.fileno(), 5000)
        with pytest.raises(ElfError, match="truncated"):
            elf.symbols(NAMES)


@pytest.mark.parametrize("path", [TRUE, LIBSSL])
def test_mutations_are_read_or_refused(path: Path) -> None:
    """Headers and tables overwritten at random: nothing but ElfError comes out, whatever they say."""
    good, rng = path.read_bytes(), random.Random(7)
    with opened(path) as elf:
        tables = [(0, 64), (64, 56 * len(elf._segments))] + [
            (int(s["offset"]), min(int(s["size"]), 4096)) for s in elf.sections if s["type"] in (2, 3, 4, 6, 11)
        ]
        tables += [(int(elf._header["shoff"]), 64 * len(elf.sections))] * 3
    refused = 0
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 3, 20))):
            start, size = rng.choice(tables)
            at = start + rng.randrange(max(size - 8, 1))
            bad[at : at + 8] = rng.choice(
                (b"\xff" * 8, bytes(8), rng.randbytes(8), struct.pack("<Q", 1 << rng.randrange(64)))
            )
        refused += bool(broken(bytes(bad)))
        with tempfile.TemporaryFile() as file, suppress(OSError):
            file.write(bad)
            file.flush()
            executable_ranges(file.fileno())
    assert refused > 20


def test_many_small_reads_are_too_many() -> None:
    """A table of relocations against symbols, each of which is read by itself, listed by every section."""
    content = bytearray(LIBSSL.read_bytes())
    with opened(LIBSSL) as elf:
        table = elf._loads[0]
        vaddr = int(table["vaddr"])
    symbols, entries = len(content), 4096
    content += bytes(24)
    content += b"".join(struct.pack("<QIIQ", vaddr, 1, 0, 0) for _ in range(entries))
    shoff, count = struct.unpack_from("<Q", content, 40)[0], struct.unpack_from("<H", content, 60)[0]
    struct.pack_into("<IIQQQQI", content, shoff, 0, 11, 0, 0, symbols, 24, 0)
    for at in range(shoff + 64, shoff + 64 * count, 64):
        struct.pack_into("<IIQQQQI", content, at, 0, 4, 2, 0, symbols + 24, 24 * entries, 0)
    with opened(bytes(content)) as elf, pytest.raises(ElfError, match="more to read"):
        elf.pointers([(vaddr, 16)])
