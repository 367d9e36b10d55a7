"""This host's processor: system call numbers by name, and what a seccomp filter has to compare. Standard library only:
the loader and the privileged helper run this.
"""

from __future__ import annotations

import os
from functools import cache

#: As ``uname -m`` prints it.
MACHINE = os.uname().machine
#: AUDIT_ARCH_* of include/uapi/linux/audit.h: ``seccomp_data.arch``.
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[MACHINE]
#: Whether the lists of allowed system calls were made for this processor: there are no filters on others.
CONFINES = MACHINE == "x86_64"
#: The table of 32-bit programs' system calls, whose numbers are others.
COMPAT = "i386"


@cache
def syscalls(machine: str = MACHINE) -> dict[int, str]:
    """System call names by number; machine: as in the file names of this folder."""
    with open(f"{os.path.dirname(__file__)}/syscalls_{machine}.txt", encoding="ascii") as lines:
        entries = [line.split() for line in lines]
    return {int(entry[0]): entry[1] for entry in entries if len(entry) == 2 and entry[0].isdigit()}


def allowed(names: str) -> tuple[int, ...]:
    """As ``numbers``, without the system calls that this processor does not have."""
    wanted = names.split()
    return tuple(number for number, name in syscalls().items() if name in wanted)


def numbers(names: str) -> tuple[int, ...]:
    """The numbers of these system calls, names separated by spaces. Raises KeyError for a name that is not known."""
    known = {name: number for number, name in syscalls().items()}
    return tuple(known[name] for name in names.split())


def number(name: str) -> int:
    """The number of a system call. Raises KeyError."""
    return numbers(name)[0]
