"""Attaches the tls family's programs to each OpenSSL found, and reports handshakes that their process did not live to end."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.errors import printable
from agent.kernel import bpf
from agent.kernel.elf import AARCH64, X86_64, Elf, ElfError
from agent.kernel.openssl import Layout, Library, analyse, version_text
from agent.probes.tls import decode_handshakes

if TYPE_CHECKING:
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.kernel.targets import Attacher, Targets

#: Also as Python wheels bundle it: libssl-81ffa89e.so.3.
LIBRARIES = rb"libssl(?:-\w+)?\.so(?:\.\w+)*"
_PAGE, _CODE, _MAX_LAYOUTS = 4096, 60, 256
_ABANDONED = 2
#: What the kernel writes over the instruction at a uprobe.
_BREAKPOINT = {X86_64: b"\xcc", AARCH64: struct.pack("<I", 0xD42000A0)}
_PROGRAMS = {"client": "tls_client", "server": "tls_server", "unknown": "tls_either"}


def code_key(elf: Elf, vaddr: int, probed: Iterable[int]) -> set[bytes]:
    """Keys of ``struct tls_code`` for the function at vaddr, as bpf/tls.bpf.c will read it.

    Two where a probe lies in the 60 bytes that are read: with its breakpoint and without.
    """
    offset = vaddr % _PAGE
    page = vaddr - offset
    at = page + _PAGE - _CODE if offset < 128 else page
    code = elf.read(at, _CODE)
    patched = bytearray(code)
    for one in probed:
        if at <= one < at + _CODE:
            mark = _BREAKPOINT.get(elf.machine, b"")[: at + _CODE - one]
            patched[one - at : one - at + len(mark)] = mark
    return {struct.pack("<I", offset) + one for one in (code, bytes(patched))}


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


class Handshakes:
    """Implements ``agent.batch.Source``. Raises OSError where a map of the family cannot be used."""

    name = "tls"

    def __init__(self, family: Family, kernel: KernelSource, helper: Attacher, targets: Targets) -> None:
        self._family, self._helper, self._targets = family, helper, targets
        dtype = kernel.loaded.wire.dtype
        self._event = dtype("tls_event")
        self._opened = bpf.HashMap(family.maps["tls_opened"], dtype("tls_key"), dtype("tls_open"))
        self._layouts: dict[tuple[Layout, str], int] = {}
        self._sites: set[bytes] = set()
        self._ended: list[np.ndarray] = []
        kernel.listen("tls_exits", self._ended.append)
        targets.library(LIBRARIES, self._found_library)
        targets.exe(self._found_program)

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Handshakes that were open when their process ended."""
        del now_ns
        if not self._ended:
            return
        ends = np.concatenate(self._ended)
        self._ended.clear()
        keys, values = self._opened.read()
        which = np.searchsorted(ends["proc"]["pid"], keys["pid"], sorter=(order := np.argsort(ends["proc"]["pid"])))
        ends = ends[order][np.minimum(which, len(ends) - 1)]
        cut_off = ends["proc"]["pid"] == keys["pid"]
        if not cut_off.any():
            return
        keys, values, ends = keys[cut_off], values[cut_off], ends[cut_off]
        self._opened.drop(keys)
        rows = np.zeros(len(keys), self._event)
        for name in ("t_ns", "proc"):
            rows[name] = ends[name]
        for name in ("sock", "in_call_ns", "calls"):
            rows[name] = values[name]
        rows["proc"]["tid"] = np.where(values["tid"], values["tid"], ends["proc"]["pid"])
        rows["duration_ns"] = ends["t_ns"] - values["start_ns"]
        rows["result"] = _ABANDONED
        versions = {number: version for (_, version), number in self._layouts.items()}
        rows["library_version"] = [versions.get(number, "").encode() for number in values["layout"].tolist()]
        rows["library"] = b"openssl"
        yield from decode_handshakes(rows)

    def close(self) -> None:
        """Nothing of its own: ``Targets`` lets go of the files."""

    def _found_library(self, pid: int, path: str, fd: int) -> Callable[[], None] | None:
        def sibling(elf: Elf) -> str:
            directory, _, name = path.rpartition("/")
            crypto_name = next((n for n in elf.needed if n.startswith("libcrypto") and "/" not in n), name.replace("libssl", "libcrypto"))
            try:
                crypto = self._targets.open(pid, f"{directory}/{crypto_name}")
            except OSError:
                return ""
            try:
                return version_text(Elf(crypto))
            finally:
                os.close(crypto)

        return self._attach(path, fd, sibling)

    def _found_program(self, pid: int, path: str, fd: int) -> Callable[[], None] | None:
        del pid
        return self._attach(path, fd, lambda _: "")

    def _attach(self, path: str, fd: int, other_version: Callable[[Elf], str]) -> Callable[[], None] | None:
        """Analyses a file and attaches to it; returns what detaches."""
        shown = printable(path)
        links: list[int] = []
        try:
            elf = Elf(fd)
            library = analyse(elf)
            if library is None:
                return None
            self._describe(elf, library, other_version(elf) or version_text(elf))
            self._probe(elf, library, fd, links)
        except ElfError as error:
            if "libssl" in path:
                self._note(f"{shown}: {error}")
        except OSError as error:
            self._family.state = "degraded"
            self._note(f"{shown}: cannot attach: {error.strerror}")
        else:
            if not library.implicit:
                self._note(f"{shown}: {library.reason}: handshakes inside SSL_read and SSL_write are not seen, failed ones as abandoned")
        return partial(_close, links) if links else None

    def _note(self, text: str) -> None:
        if text not in self._family.reason:
            self._family.reason = f"{self._family.reason}; {text}".removeprefix("; ")[:250]

    def _describe(self, elf: Elf, library: Library, version: str) -> None:
        """Tells the kernel side what the code of this file is, before its first probe. version: "" where only the soname tells."""
        probed = [site.vaddr for site in library.handshake] + ([library.free] if library.free is not None else [])
        keys = {key for site in library.handshake for key in code_key(elf, site.vaddr, probed)}
        if not version and keys <= self._sites:
            return  # a copy, without its libcrypto beside it, of what is known better
        self._sites |= keys
        version = (version or elf.soname.rpartition(".so.")[2])[:31]
        number = self._layouts.setdefault((library.layout, version), len(self._layouts))
        if number >= _MAX_LAYOUTS:
            del self._layouts[library.layout, version]
            raise ElfError("too many different OpenSSL versions on one host")
        offsets = struct.pack("<6i", *vars(library.layout).values())
        bpf.update(self._family.maps["tls_layouts"], struct.pack("<I", number), offsets + struct.pack("16s32s", b"openssl", version.encode()))
        for key in keys:
            bpf.update(self._family.maps["tls_sites"], key, struct.pack("<I", number))

    def _probe(self, elf: Elf, library: Library, fd: int, links: list[int]) -> None:
        """Returns first and entries last, so that no entry goes without its return."""
        programs, attach = self._family.programs, self._helper.attach_uprobe
        links += attach(programs["tls_return"], fd, [elf.file_offset(site.vaddr) for site in library.handshake], ret=True)
        if library.free is not None and "tls_free" in programs:
            links += attach(programs["tls_free"], fd, [elf.file_offset(library.free)])
        for site in library.handshake:
            links += attach(programs[_PROGRAMS[site.role]], fd, [elf.file_offset(site.vaddr)])
