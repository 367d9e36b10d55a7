"""Where to probe an OpenSSL library so that handshakes are observed and established connections cost nothing, without
debug symbols.

Every handshake, explicit or in the first read or write, calls one of two functions without an exported name:
``ossl_statem_connect`` and ``ossl_statem_accept`` (one argument, the SSL*; 1 when done, else <= 0). Data never does.
They are found by comparing the three exported method tables: TLS_method() has both, TLS_client_method() differs from it
only in accept (undefined there) and TLS_server_method() only in connect (ssl/methods.c and ssl/ssl_local.h of OpenSSL
1.1.0 to 3.5). Field offsets come from the machine code of exported accessors, each a single load. Anything that does
not look exactly as expected is unknown.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agent.binaries.elf import Elf, ElfError, Symbol

UNKNOWN = -1
#: Pointers compared in a method table: past the end of ssl_accept and ssl_connect in all versions.
_SLOTS = 16
_METHODS = (b"TLS_method", b"TLS_client_method", b"TLS_server_method")
_ACCESSORS = (
    b"SSL_version",
    b"SSL_want",
    b"SSL_get_rbio",
    b"SSL_get_verify_result",
    b"SSL_get_state",
    b"SSL_in_init",
    b"SSL_get_session",
    b"SSL_SESSION_get0_peer",
)
_EXPLICIT = {b"SSL_connect": "client", b"SSL_accept": "server", b"SSL_do_handshake": "unknown"}
_VERSION = re.compile(rb"OpenSSL (\d+\.\d+\.\d+[a-z]?(?:[-+][\w.]+)?) +\d")
_ERRORS = re.compile(rb"\0(?:tls_process_server_hello|ssl3_get_server_hello)\0")
_LEAST_STATIC = 1 << 20
_PAGE, _CODE = 4096, 60


@dataclass(frozen=True)
class Layout:
    """Byte offsets into an SSL, -1 for unknown: protocol version, rwstate, message flow state, read BIO (the write BIO
    follows it), certificate verification result; of the flags in a BIO; of the session, and in it of the peer's
    certificate.
    """

    version: int = UNKNOWN
    rwstate: int = UNKNOWN
    flow: int = UNKNOWN
    rbio: int = UNKNOWN
    verify_result: int = UNKNOWN
    bio_flags: int = UNKNOWN
    session: int = UNKNOWN
    peer: int = UNKNOWN


@dataclass(frozen=True)
class Site:
    """A function to probe: its virtual address, and the role of its calls (client, server, unknown)."""

    vaddr: int
    role: str


@dataclass(frozen=True)
class Library:
    """What to probe in one file. ``implicit``: handshakes inside SSL_read and SSL_write are observed too; if not,
    ``reason``.
    """

    handshake: tuple[Site, ...]
    free: int | None
    layout: Layout
    implicit: bool
    reason: str = ""


def analyse(elf: Elf) -> Library | None:
    """Finds what to probe; None if the file defines no OpenSSL. Raises ElfError for a malformed file."""
    symbols = elf.symbols({*_METHODS, *_ACCESSORS, *_EXPLICIT, b"SSL_free", b"BIO_test_flags"})
    if b"SSL_do_handshake" not in symbols or b"SSL_free" not in symbols:
        return None
    free = symbols[b"SSL_free"].value
    try:
        sites = _state_machine(elf, symbols)
        return Library(sites, free, _layout(elf, symbols), implicit=True)
    except ElfError as error:
        sites = tuple(Site(symbols[name].value, role) for name, role in _EXPLICIT.items() if name in symbols)
        return Library(sites, free, Layout(), implicit=False, reason=str(error))


def version_text(elf: Elf) -> str:
    """The release in a libcrypto or a program that contains one, such as ``3.0.17``; empty if not found."""
    found = elf.search(".rodata", _VERSION)
    return found.group(1).decode() if found else ""


def facts(fds: list[int], program: bool = False) -> dict[str, Any] | None:
    """For the ELF analyzer: the places to probe in a libssl (with its libcrypto as second file) or a program, as file
    offsets; None without OpenSSL.

    A program with an OpenSSL without symbols gives ``{"hidden": version}``.
    """
    try:
        elf = Elf(fds[0])
        library = analyse(elf)
        if library is None:
            hidden = _hidden(elf) if program else ""
            return {"hidden": hidden} if hidden else None
    except ElfError:
        if program:
            return None
        raise
    probed = [site.vaddr for site in library.handshake] + ([library.free] if library.free is not None else [])
    return {
        "sites": [[site.role, elf.file_offset(site.vaddr)] for site in library.handshake],
        "free": None if library.free is None else elf.file_offset(library.free),
        "keys": sorted({key.hex() for site in library.handshake for key in code_key(elf, site.vaddr, probed)}),
        "layout": list(vars(library.layout).values()),
        "version": _version_beside(fds) or version_text(elf),
        "soname": elf.soname,
        "implicit": library.implicit,
        "reason": library.reason,
    }


def _version_beside(fds: list[int]) -> str:
    try:
        return version_text(Elf(fds[1])) if len(fds) > 1 else ""
    except (ElfError, OSError):
        return ""


def _hidden(elf: Elf) -> str:
    """The version of an OpenSSL in a stripped program, by the names in its error messages; empty if there is none."""
    if elf.file_size < _LEAST_STATIC or elf.search(".rodata", _ERRORS) is None:
        return ""
    return version_text(elf) or "of unknown version"


def code_key(elf: Elf, vaddr: int, probed: Iterable[int]) -> set[bytes]:
    """Keys of ``struct tls_code`` for the function at vaddr, as bpf/tls.bpf.c reads it.

    Two if probes are within the 60 bytes that are read: with their breakpoints and without.
    """
    offset = vaddr % _PAGE
    page = vaddr - offset
    at = page + _PAGE - _CODE if offset < 128 else page
    code = elf.read(at, _CODE)
    keys = set[bytes]()
    for places in ((), tuple(probed)):
        patched = bytearray(code)
        for one in places:
            if at <= one < at + _CODE:
                mark = elf.machine.breakpoint[: at + _CODE - one]
                patched[one - at : one - at + len(mark)] = mark
        keys.add(struct.pack("<I", offset) + bytes(patched))
    return keys


def _state_machine(elf: Elf, symbols: dict[bytes, Symbol]) -> tuple[Site, ...]:
    if any(name not in symbols for name in _METHODS):
        raise ElfError("no TLS_method, TLS_client_method and TLS_server_method")
    tables = [_returned_address(elf, symbols[name]) for name in _METHODS]
    both, client, server = (t.tolist() for t in elf.pointers([(at, _SLOTS) for at in tables]))
    accept = [i for i in range(2, _SLOTS) if both[i] == server[i] != client[i]]
    connect = [i for i in range(2, _SLOTS) if both[i] == client[i] != server[i]]
    if len(accept) != 1 or len(connect) != 1 or client[accept[0]] != server[connect[0]]:
        raise ElfError("the method tables are not OpenSSL's")
    return Site(both[connect[0]], "client"), Site(both[accept[0]], "server")


def _code(elf: Elf, symbol: Symbol, most: int = 160) -> bytes:
    return elf.read(symbol.value, min(symbol.size or 8, most))


def _returned_address(elf: Elf, symbol: Symbol) -> int:
    """The address that a function of the form ``return &table`` returns."""
    at = elf.machine.accessors.returned_address(_code(elf, symbol, 32), symbol.value)
    if at is None:
        raise ElfError("TLS_method does not return the address of a table")
    return at


def _field(elf: Elf, symbols: dict[bytes, Symbol], accessor: bytes, wide: bool = False) -> int:
    if accessor not in symbols:
        return UNKNOWN
    found = elf.machine.accessors.loads(_code(elf, symbols[accessor]), wide)
    return found.pop() if len(found) == 1 else UNKNOWN


def _layout(elf: Elf, symbols: dict[bytes, Symbol]) -> Layout:
    # struct ossl_statem_st: state, write_state, write_state_work, read_state, read_state_work, hand_state,
    # request_state, in_init.
    hand_state, in_init = _field(elf, symbols, b"SSL_get_state"), _field(elf, symbols, b"SSL_in_init")
    flow = hand_state - 20 if hand_state >= 20 and in_init == hand_state + 8 else UNKNOWN
    if b"BIO_test_flags" in symbols:
        bio_flags = _field(elf, symbols, b"BIO_test_flags")
    else:
        # struct bio_st begins with a library context since 3.0 (crypto/bio/bio_local.h).
        bio_flags = {"libssl.so.1.1": 0x28, "libssl.so.3": 0x30}.get(elf.soname, UNKNOWN)
    return Layout(
        version=_field(elf, symbols, b"SSL_version"),
        rwstate=_field(elf, symbols, b"SSL_want"),
        flow=flow,
        rbio=_field(elf, symbols, b"SSL_get_rbio", wide=True),
        verify_result=_field(elf, symbols, b"SSL_get_verify_result", wide=True),
        bio_flags=bio_flags,
        session=_field(elf, symbols, b"SSL_get_session", wide=True),
        peer=_field(elf, symbols, b"SSL_SESSION_get0_peer", wide=True),
    )
