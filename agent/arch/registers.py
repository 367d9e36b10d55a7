"""Registers that programs of bpf/ can read at a function's entry or return, by calling convention. A register is
written without its size (``di``: rdi, edi), and its number is its place in ``GO`` (bpf/limiter_decision.h).
"""

from __future__ import annotations

import re

#: In the order in which Go passes words of arguments and of results (ABIInternal on x86-64, since Go 1.17; floats go
#: elsewhere).
GO = ("ax", "bx", "cx", "di", "si", "r8", "r9", "r10", "r11")
#: In the order in which C, C++ and Rust pass them (System V ABI).
SYSTEM_V, SYSTEM_V_RESULTS = ("di", "si", "dx", "cx", "r8", "r9"), ("ax", "dx")
#: The stack pointer: a call's return address, then arguments for which no registers were left.
STACK = "sp"
#: Which of ``SYSTEM_V`` Go does not use.
OTHERS = ("dx",)
_NAME = re.compile(r"[re]?([abcd]x|[sd]i|sp)")


def plain(text: str) -> str:
    """A text in which registers are named with a size (``rdi+24``, ``eax``), without it."""
    return _NAME.sub(lambda found: found[1], text)


def unreadable(name: str) -> bool:
    """Whether it is a register that no program can read: of floats."""
    return name.startswith("xmm")
