"""Compiles C text to loadable programs and live maps: by BCC, or from a cache.

Only this module imports bcc. Otherwise standard library: the loader runs it under the system's python3. BCC takes 1.5 s
of CPU time; creating the maps and loading cached programs takes 0.1 s. Facts from the kernel's type information, which
take 0.2 s to read, are cached too. The cache key covers all input.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes as ct
import importlib.util
import json
import os
import struct
import sys
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent.kernel import syscall

CACHE = Path("/var/cache/tickscope")
#: Files in the cache, the last used ones, of some 60 KB: two for each set of programs that was loaded.
_KEEP = 64
_MAP_CREATE, _OBJ_GET_INFO = 0, 15
_LOAD_IMM64, _PSEUDO_MAP_FD = 0x18, 1
#: struct bpf_insn: code, registers, off, imm.
INSTRUCTION = struct.Struct("<BBhi")


def missing() -> str:
    """Why this python3 cannot import BCC, without importing it; empty if it can."""
    found = importlib.util.find_spec("bcc")
    if found is None or not found.origin:
        return f"{sys.executable} has no module bcc"
    return (
        ""
        if Path(found.origin).with_name("libbcc.py").exists()
        else f"{found.origin} is PyPI's unrelated package, not BCC"
    )


#: bpf/tickscope.h: from this number on, a call's number is a kernel function's type id.
_KFUNC_BASE, _CALL, _PSEUDO_KFUNC_CALL = 0x40000000, 0x85, 2


def with_kernel_functions(code: bytes) -> bytes:
    """Converts calls of KFUNC_BASE + a type id to calls of that kernel function, which BCC cannot express."""
    out = bytearray(code)
    for at in range(0, len(code), INSTRUCTION.size):
        op, registers, _, imm = INSTRUCTION.unpack_from(code, at)
        if op == _CALL and not registers >> 4 and imm >= _KFUNC_BASE:
            INSTRUCTION.pack_into(out, at, op, registers & 15 | _PSEUDO_KFUNC_CALL << 4, 0, imm - _KFUNC_BASE)
    return bytes(out)


class Compiled:
    """maps: descriptor by name. ``code(function)``: a program's instructions, which refer to these descriptors; empty
    if there is no such function.
    """

    def __init__(self, maps: dict[str, int], programs: dict[str, bytes]) -> None:
        self.maps, self._programs = maps, programs

    def code(self, function: str) -> bytes:
        return self._programs.get(function, b"")


def compile_text(text: str, cflags: list[str]) -> Compiled:
    """Compiles with BCC. Raises what BCC raises (a bare Exception), ImportError without it; the compiler's messages go
    to stderr.
    """
    from bcc import BPF
    from bcc.libbcc import lib

    for function, result in (
        ("bpf_num_tables", ct.c_size_t),
        ("bpf_table_name", ct.c_char_p),
        ("bpf_table_fd_id", ct.c_int),
    ):
        declared = getattr(lib, function)  # in libbcc's bcc_common.h, but not in BCC's Python
        declared.restype, declared.argtypes = (
            result,
            [ct.c_void_p, ct.c_size_t][: 1 if function == "bpf_num_tables" else 2],
        )
    module = BPF(text=text, cflags=cflags).module
    maps = {
        lib.bpf_table_name(module, i).decode(): lib.bpf_table_fd_id(module, i)
        for i in range(lib.bpf_num_tables(module))
    }
    names = [lib.bpf_function_name(module, i).decode() for i in range(lib.bpf_num_functions(module))]
    programs = {
        n: ct.string_at(lib.bpf_function_start(module, n.encode()), lib.bpf_function_size(module, n.encode()))
        for n in names
    }
    # The module is never destroyed: it owns the maps, and this process ends soon.
    return Compiled(maps, programs)


def key(parts: object, files: Iterable[Path]) -> str:
    """The cache key of these parts (as JSON) and these files' contents, on the running kernel. Raises OSError."""
    digest = blake2b(json.dumps([parts, list(os.uname())[2:]]).encode(), digest_size=32)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def recall(name: str) -> Any:
    """The content that ``remember`` stored under this name; None if there is none. Ignores files that other users could
    have written.
    """
    path = CACHE / f"{name}.json"
    try:
        for one in (CACHE, path):
            status = one.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
        kept = json.loads(path.read_text())
        os.utime(path)
        return kept
    except (OSError, ValueError):
        return None


def remember(name: str, content: object) -> None:
    """Stores content for the next start, and keeps only the last used files. A directory that cannot be written is no
    error, only slower.
    """
    with contextlib.suppress(OSError):
        CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = CACHE / f"{name}.{os.getpid()}"
        temporary.write_text(json.dumps(content))
        temporary.chmod(0o600)
        temporary.rename(CACHE / f"{name}.json")
        for old in sorted(CACHE.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_KEEP]:
            old.unlink()


def kept_programs(name: str) -> Compiled | None:
    """The programs that were stored under ``name``, with new maps; None if there are none."""
    try:
        kept = recall(name)
        maps = {m["name"]: _create(m) for m in kept["maps"]}
        return Compiled(
            maps, {n: _relocate(base64.b64decode(p["code"]), p["maps"], maps) for n, p in kept["programs"].items()}
        )
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def keep_programs(name: str, compiled: Compiled) -> None:
    by_fd = {fd: n for n, fd in compiled.maps.items()}
    programs = {}
    for function, code in compiled._programs.items():
        places = [
            (i, by_fd[imm])
            for i, (op, regs, _, imm) in enumerate(INSTRUCTION.iter_unpack(code))
            if op == _LOAD_IMM64 and regs >> 4 == _PSEUDO_MAP_FD
        ]
        programs[function] = {"code": base64.b64encode(code).decode(), "maps": places}
    remember(name, {"maps": [_describe(n, fd) for n, fd in compiled.maps.items()], "programs": programs})


def _describe(name: str, fd: int) -> dict[str, object]:
    info = ct.create_string_buffer(88)
    syscall.require(_OBJ_GET_INFO, struct.pack("<IIQ", fd, len(info), ct.addressof(info)))
    kind, _, key_bytes, value_bytes, entries, flags = struct.unpack_from("<6I", info.raw)
    return {"name": name, "type": kind, "key": key_bytes, "value": value_bytes, "entries": entries, "flags": flags}


def _create(m: dict[str, object]) -> int:
    sizes = [int(str(m[k])) for k in ("type", "key", "value", "entries", "flags")]
    return syscall.require(_MAP_CREATE, struct.pack("<7I16s", *sizes, 0, 0, str(m["name"]).encode()[:15]))


def _relocate(code: bytes, places: list[tuple[int, str]], maps: dict[str, int]) -> bytes:
    out = bytearray(code)
    for index, name in places:
        struct.pack_into("<i", out, 8 * index + 4, maps[name])
    return bytes(out)
