"""Functions of C libraries that adjust a clock: who adjusts frequency and offset, and whose attempt is refused."""

from __future__ import annotations

from agent.binaries.analyses import functions
from agent.instruments.kind import BinaryKind

#: glibc (libc.so.6, libc-2.31.so) and musl (libc.so on Debian).
LIBRARIES = rb"libc\.so(?:\.6)?|libc-2\.\d+\.so|ld-musl-[\w-]+\.so\.1|libc\.musl-[\w-]+\.so\.1"
#: Program -> functions with its arguments.
_PROGRAMS = {
    "clock_in_settime": ["clock_settime"],
    "clock_in_settimeofday": ["settimeofday"],
    "clock_in_adjtime": ["adjtime"],
    "clock_in_adjtimex": ["adjtimex", "ntp_adjtime"],
    "clock_in_clock_adjtime": ["clock_adjtime"],
}

KIND = BinaryKind(
    name="libc clock",
    family="clock",
    analyze=functions,
    libraries=LIBRARIES,
    arguments={
        "names": [name for names in _PROGRAMS.values() for name in names],
        "programs": _PROGRAMS,
        "returned": "clock_out",
    },
)
