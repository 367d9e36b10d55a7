"""Finding the handshake functions and field offsets in libssl files, and refusing what only looks like one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.arch.machine import X86_64
from agent.binaries.elf import Elf
from agent.binaries.openssl import UNKNOWN, Library, analyse, code_key, version_text

LIBSSL = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.*"))))
STUB = """
#include <stddef.h>
struct method { int version; unsigned flags; unsigned long mask; void *slots[20]; };
int undefined(void *s) { (void)s; return -1; }
int accept_it(void *s) { (void)s; return 1; }
int connect_it(void *s) { (void)s; return 2; }
static const struct method both = { 1, 0, 0, { 0, 0, 0, ACCEPT, CONNECT } };
static const struct method client = { 1, 0, 0, { 0, 0, 0, undefined, CONNECT } };
static const struct method server = { 1, 0, 0, { 0, 0, 0, ACCEPT, undefined } };
const void *TLS_method(void) { return &both; }
const void *TLS_client_method(void) { return &client; }
const void *TLS_server_method(void) { return &server; }
int SSL_do_handshake(void *s) { return s != NULL; }
int SSL_connect(void *s) { return SSL_do_handshake(s); }
void SSL_free(void *s) { (void)s; }
int SSL_version(const int *s) { return s[3]; }
int SSL_want(const int *s) { return s[SWAP]; }
int SSL_get_state(const int *s) { return s[30]; }
int SSL_in_init(const int *s) { return s[IN_INIT]; }
const char text[] = "OpenSSL 3.9.11 1 Jan 2030";
"""


Open = Callable[[Path], Elf]


@pytest.fixture
def open_elf() -> Iterator[Open]:
    with contextlib.ExitStack() as files:
        yield lambda path: Elf(files.enter_context(path.open("rb")).fileno())


def built(tmp_path: Path, **words: str) -> Path:
    (tmp_path / "stub.c").write_text(STUB)
    flags = [
        f"-D{k}={v}"
        for k, v in {"ACCEPT": "accept_it", "CONNECT": "connect_it", "SWAP": "7", "IN_INIT": "32", **words}.items()
    ]
    subprocess.run(
        [
            "gcc",
            "-O2",
            "-shared",
            "-fPIC",
            "-fvisibility=default",
            "-Wl,-Bsymbolic",
            *flags,
            "-o",
            tmp_path / "stub.so",
            tmp_path / "stub.c",
        ],
        check=True,
    )
    return tmp_path / "stub.so"


def of(elf: Elf) -> tuple[Elf, Library]:
    library = analyse(elf)
    assert library is not None
    return elf, library


def test_the_library_of_this_host(open_elf: Open) -> None:
    elf, library = of(open_elf(LIBSSL))
    assert library.implicit
    assert [site.role for site in library.handshake] == ["client", "server"]
    assert UNKNOWN not in vars(library.layout).values()
    listing = subprocess.run(["readelf", "-SW", LIBSSL], capture_output=True, text=True, check=True).stdout
    text = next(line.split("]")[1].split() for line in listing.splitlines() if " .text " in line)
    assert all(int(text[2], 16) <= site.vaddr < int(text[2], 16) + int(text[4], 16) for site in library.handshake)
    assert version_text(elf) in (
        "",
        subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.split()[1],
    )


def test_a_library_of_the_same_shape(tmp_path: Path, open_elf: Open) -> None:
    elf = open_elf(built(tmp_path))
    library = analyse(elf)
    assert library is not None
    wanted = elf.symbols({b"accept_it", b"connect_it"})
    assert {site.role: site.vaddr for site in library.handshake} == {
        "client": wanted[b"connect_it"].value,
        "server": wanted[b"accept_it"].value,
    }
    assert (library.layout.version, library.layout.rwstate, library.layout.flow) == (12, 28, 100)
    assert version_text(elf) == "3.9.11"


@pytest.mark.parametrize(
    ("words", "why"),
    [({"ACCEPT": "connect_it"}, ""), ({"ACCEPT": "undefined"}, "tables"), ({"CONNECT": "undefined"}, "tables")],
)
def test_tables_that_are_not_openssl(tmp_path: Path, open_elf: Open, words: dict[str, str], why: str) -> None:
    library = analyse(open_elf(built(tmp_path, **words)))
    assert library is not None
    assert library.implicit is (not why)
    if why:
        assert why in library.reason
        assert {site.role for site in library.handshake} == {"client", "unknown"}
        assert set(vars(library.layout).values()) == {UNKNOWN}


def test_a_state_that_does_not_fit_is_unknown(tmp_path: Path, open_elf: Open) -> None:
    library = analyse(open_elf(built(tmp_path, IN_INIT="33")))
    assert library is not None
    assert library.layout.flow == UNKNOWN


def test_loads() -> None:
    assert X86_64.accessors.loads(bytes.fromhex("8b4728 31ff c3"), wide=False) == {0x28}
    assert X86_64.accessors.loads(bytes.fromhex("8b07 c3"), wide=False) == {0}
    assert X86_64.accessors.loads(bytes.fromhex("8b07 85c0 7411 8b4768 c3"), wide=False) == {0x68}
    assert X86_64.accessors.loads(bytes.fromhex("488b87b8090000 c3"), wide=True) == {0x9B8}
    assert X86_64.accessors.loads(bytes.fromhex("488b4710 c3"), wide=False) == set()


def test_nothing_to_probe_in_other_files(open_elf: Open) -> None:
    assert analyse(open_elf(Path("/bin/true"))) is None


def test_code_keys_allow_for_our_own_breakpoints(open_elf: Open) -> None:
    elf, library = of(open_elf(LIBSSL))
    site = library.handshake[0].vaddr
    page = site - site % 4096
    window = page + 4096 - 60 if site % 4096 < 128 else page
    assert len(code_key(elf, site, [site])) == (2 if window <= site < window + 60 else 1)
    plain, patched = sorted(code_key(elf, site, [window + 8]), key=lambda key: key[12] == 0xCC)
    assert len(plain) == len(patched) == 64
    assert patched[12] == 0xCC
    assert plain[:12] + patched[12:13] + plain[13:] == patched
