"""bpf(2) and other system calls without a libc function. Standard library only: the loader runs this under the system's
python3.

Attribute layouts: union bpf_attr in include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes as ct
import os

from agent.arch import host

_SYS_BPF = host.number("bpf")
_ATTR_BYTES = 128
_libc = ct.CDLL(None, use_errno=True)
_libc.syscall.restype = ct.c_long


def attributes(data: bytes) -> ct.Array[ct.c_char]:
    """A buffer for a command's attributes, which the kernel may write to; zero after ``data``."""
    return ct.create_string_buffer(data.ljust(_ATTR_BYTES, b"\0"), _ATTR_BYTES)


def bpf(command: int, attr: ct.Array[ct.c_char]) -> int:
    """A descriptor or 0; -errno on failure."""
    result = _libc.syscall(_SYS_BPF, command, attr, len(attr))
    return int(result) if result >= 0 else -ct.get_errno()


def require(command: int, data: bytes) -> int:
    """A descriptor or 0. Raises OSError."""
    if (result := bpf(command, attributes(data))) < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def call(number: int, *args: object) -> int:
    """Any system call, arguments as ctypes values. Raises OSError."""
    result = _libc.syscall(ct.c_long(number), *args)
    if result < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return int(result)
