"""What a limiter library is, as one declaration: what it is called, what a step of the clock does to it, and where its decisions are seen. Data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Registers that a program of bpf/ can read at a function's entry or return, in the order in which Go passes words of arguments and of results
#: (ABIInternal on x86-64; floats go elsewhere). The number of one is its place here.
REGISTERS = ("ax", "bx", "cx", "di", "si", "r8", "r9", "r10", "r11")
CLOCKS = ("caller", "wall", "remote wall", "monotonic")
ROLES = ("decision", "wait")


@dataclass(frozen=True)
class Step:
    """What a step of the wall clock by D does to a limiter that is in use. versions: a regular expression of those for which it holds. model: as
    ``LimiterLibrary.model``, where versions differ in it."""

    back: str
    forward: str
    versions: str = ".*"
    model: str = ""


@dataclass(frozen=True)
class Function:
    """A function whose calls are seen.

    symbol: behind the package's import path. role: ``decision``, without which nothing is seen, or ``wait``, which may decide before it calls that and sleeps after it.
    entry, end: the programs at its first instruction and at each of its returns. arguments, results: name -> register of ``REGISTERS``; which names
    there must be is the programs' to say. loses: what is not seen without it. Raises ValueError for a role or a register that there is not.
    """

    symbol: str
    role: str
    entry: str
    end: str
    arguments: Mapping[str, str]
    results: Mapping[str, str]
    loses: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"{self.symbol}: no role {self.role!r}: one of {', '.join(ROLES)}")
        for name, register in {**self.arguments, **self.results}.items():
            if register not in REGISTERS:
                raise ValueError(f"{self.symbol}: {name} in {register!r}: one of {', '.join(REGISTERS)}")


@dataclass(frozen=True)
class Refused:
    """Versions that cannot be seen (a regular expression of how they begin), and why: follows ``MODULE VERSION`` in a sentence."""

    versions: str
    why: str


@dataclass(frozen=True)
class Seen:
    """How decisions are seen in a Go program that was built with the library.

    module: whose version the build information has. packages: import paths under which the functions are found, in vendor folders too.
    fields: name -> offset in the limiter, bytes. limiter: what one is called, its address follows. unlimited: the rate from which on there is no limit.
    source: the file in bpf/ that has the programs. refused: versions whose layout is another.
    """

    module: str
    packages: tuple[str, ...]
    functions: tuple[Function, ...]
    fields: Mapping[str, int]
    limiter: str
    unlimited: float
    source: str
    refused: tuple[Refused, ...] = ()

    def symbols(self, role: str = "") -> dict[bytes, Function]:
        """Full name -> function, of all or of one role."""
        escaped = [
            f"{folder}{slash}{name.replace('.', '%2e')}"
            for folder, slash, name in (package.rpartition("/") for package in self.packages)
        ]
        return {
            f"{package}.{one.symbol}".encode(): one
            for one in self.functions
            if role in ("", one.role)
            for package in escaped
        }

    @property
    def stem(self) -> str:
        """With which names in its source begin."""
        return self.source.partition(".")[0]

    def refusal(self, version: str) -> str:
        """Why this version is not seen; empty where it is."""
        return next(
            (f"{self.module} {version} {one.why}" for one in self.refused if re.match(one.versions, version)), ""
        )

    def options(self) -> dict[str, int]:
        """Every place by the name that the programs have for it (``LIMITER_RESERVE_N``: argument n at the entry ``limiter_reserve``): the number of a register, the offset of a field."""
        parts = [
            (program, values)
            for one in self.functions
            for program, values in ((one.entry, one.arguments), (one.end, one.results))
        ]
        registers = {
            f"{program}_{name}".upper(): REGISTERS.index(register)
            for program, values in parts
            for name, register in values.items()
        }
        return registers | {f"{self.stem}_AT_{name}".upper(): offset for name, offset in self.fields.items()}


@dataclass(frozen=True)
class LimiterLibrary:
    """A limiter library.

    library: its name, as in limiter_decision.library. clock: ``caller`` (the caller's time.Time: monotonic unless stripped), ``wall``, ``remote wall`` (of the host that keeps the state) or
    ``monotonic``. algorithm: how it counts, in words. steps: the first whose versions match holds. seen: None where its decisions are not seen from outside.
    model: the one that decides as this library does (agent/limiters/models/); empty where there is none, and the algorithm's is an estimate.
    Raises ValueError for a clock that there is not, or no steps.
    """

    library: str
    language: str
    clock: str
    algorithm: str
    steps: tuple[Step, ...]
    seen: Seen | None = None
    model: str = ""

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ValueError(f"{self.library}: no clock {self.clock!r}: one of {', '.join(CLOCKS)}")
        if not self.steps:
            raise ValueError(f"{self.library}: what a step does to it is not said")

    def step(self, version: str = "") -> Step:
        """What a step does to a version; of an unknown one, the last that is declared."""
        return next((one for one in self.steps if version and re.fullmatch(one.versions, version)), self.steps[-1])
