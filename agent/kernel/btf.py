"""Facts from the running kernel's type information (BTF), through libbpf. Standard library only, for the loader.

Layout of struct btf_type and its members: kernel Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import ctypes as ct
import re
from collections.abc import Iterable
from dataclasses import dataclass

VMLINUX = "/sys/kernel/btf/vmlinux"
_KINDS = {"struct": 4, "union": 5, "enum": 6, "typedef": 8, "const": 10, "func": 12}
_WORD = re.compile(r"\b(HAS|TP|FUNC|KFUNC)_([a-z0-9]\w*)\b")
_READ = re.compile(r",\s*([a-z]\w*)\s*,\s*(\w+)\s*\)")


class Btf:
    """The kernel's BTF. Raises OSError if it is missing or libbpf cannot read it."""

    def __init__(self, path: str = VMLINUX) -> None:
        self._lib = lib = ct.CDLL("libbpf.so.1", use_errno=True)
        lib.btf__parse.restype = ct.c_void_p
        lib.btf__find_by_name_kind.argtypes = [ct.c_void_p, ct.c_char_p, ct.c_uint]
        lib.btf__type_by_id.argtypes = [ct.c_void_p, ct.c_uint]
        lib.btf__type_by_id.restype = ct.c_void_p
        lib.btf__name_by_offset.argtypes = [ct.c_void_p, ct.c_uint]
        lib.btf__name_by_offset.restype = ct.c_char_p
        lib.libbpf_set_print(None)
        self._btf = lib.btf__parse(path.encode(), None)
        if not self._btf:
            raise OSError(ct.get_errno(), f"no usable BTF in {path}")

    def _type(self, type_id: int) -> tuple[int, int, bool, int, int]:
        """(address of the data behind the type, kind, kind_flag, vlen, size or type id)."""
        at = self._lib.btf__type_by_id(self._btf, type_id)
        _, info, size = (ct.c_uint32 * 3).from_address(at)
        return at + 12, (info >> 24) & 0x1F, bool(info >> 31), info & 0xFFFF, size

    def _find(self, name: str, kind: str) -> int:
        return int(self._lib.btf__find_by_name_kind(self._btf, name.encode(), _KINDS[kind]))

    def _name(self, offset: int) -> str:
        return str(self._lib.btf__name_by_offset(self._btf, offset).decode())

    def offset(self, struct: str, field: str) -> int | None:
        """Byte offset of ``field``, found by name at any depth of embedded structs and unions; None if
        there is none.
        """
        type_id = self._find(struct, "struct")
        return None if type_id < 0 else self._search(type_id, field, 0)

    def _search(self, type_id: int, field: str, base: int) -> int | None:
        rest, kind, flag, vlen, size = self._type(type_id)
        while kind in (_KINDS["typedef"], _KINDS["const"]):
            rest, kind, flag, vlen, size = self._type(size)
        if kind not in (_KINDS["struct"], _KINDS["union"]):
            return None
        members = (ct.c_uint32 * (3 * vlen)).from_address(rest) if vlen else ()
        nested = []
        for i in range(vlen):
            name_off, member_type, position = members[3 * i : 3 * i + 3]
            bits = position & 0xFFFFFF if flag else position
            if self._name(name_off) == field:
                return base + bits // 8
            nested.append((member_type, base + bits // 8))
        for member_type, at in nested:
            found = self._search(member_type, field, at)
            if found is not None:
                return found
        return None

    def tracepoint_args(self, name: str) -> int:
        """Number of arguments of a raw tracepoint's program, 0 if the kernel has no such tracepoint."""
        type_id = self._find(f"btf_trace_{name}", "typedef")
        if type_id < 0:
            return 0
        _, _, _, _, pointer = self._type(type_id)
        _, _, _, _, proto = self._type(pointer)
        return self._type(proto)[3] - 1

    def enumerators(self, enum: str) -> set[str]:
        """Names in an enumeration; empty if the kernel has none."""
        type_id = self._find(enum, "enum")
        if type_id < 0:
            return set()
        rest, _, _, vlen, _ = self._type(type_id)
        entries = (ct.c_uint32 * (2 * vlen)).from_address(rest)
        return {self._name(entries[2 * i]) for i in range(vlen)}


def defines(btf: Btf, sources: Iterable[str]) -> dict[str, int]:
    """Values for the macros of bpf/tickscope.h that these C texts use.

    ``OFF_struct__field`` for each ``..., struct, field)`` with a field that the kernel has, and a value for each
    ``HAS_``, ``TP_``, ``FUNC_`` and ``KFUNC_`` macro.
    """
    helpers = {name.removeprefix("BPF_FUNC_") for name in btf.enumerators("bpf_func_id")}
    out: dict[str, int] = {}
    for source in sources:
        for struct, field in set(_READ.findall(source)):
            offset = btf.offset(struct, field)
            if offset is not None:
                out[f"OFF_{struct}__{field}"] = offset
        for kind, rest in set(_WORD.findall(source)):
            if kind == "TP":
                out[f"TP_{rest}"] = btf.tracepoint_args(rest)
            elif kind == "KFUNC":
                out[f"KFUNC_{rest}"] = max(btf._find(rest, "func"), 0)
            elif kind == "FUNC":
                out[f"FUNC_{rest}"] = int(rest in helpers)
            elif "__" in rest:
                out[f"HAS_{rest}"] = int(btf.offset(*rest.split("__", 1)) is not None)
    return out


@dataclass(frozen=True)
class Facts:
    """The kernel's type information that compiling and loading need.

    words: of ``defines``. types: BTF ids of typed tracepoints (``btf_trace_NAME``) and of kernel functions by name;
    missing ones are left out. uprobe_multi: whether uprobes can be attached by links.
    """

    words: dict[str, int]
    types: dict[str, int]
    uprobe_multi: bool


def facts(btf: Btf, sources: Iterable[str], tracepoints: set[str], functions: set[str]) -> Facts:
    """Facts for these C texts, and for programs on these tracepoints and kernel functions."""
    ids = {f"btf_trace_{name}": btf._find(f"btf_trace_{name}", "typedef") for name in tracepoints}
    ids |= {name: btf._find(name, "func") for name in functions}
    words = defines(btf, [*sources, " ".join(f"TP_{name}" for name in tracepoints)])
    multi = "BPF_TRACE_UPROBE_MULTI" in btf.enumerators("bpf_attach_type")
    return Facts(words, {name: found for name, found in ids.items() if found > 0}, multi)
