"""What a limiter library is, as one declaration: what it is called, what a step of the clock does to it, and where its
decisions are seen. Data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from agent.arch import registers

#: Where a place may begin: in a register, at the stack pointer (Go's arguments for which no registers were left lie 8
#: behind it and on), or at the limiter's address. The number of one is its place here (bpf/limiter_decision.h).
BASES = (*registers.GO, registers.STACK, "limiter", *registers.OTHERS)
LANGUAGES = ("go", "c", "c++", "rust")
#: What may be read at a function's entry, in the order of bpf/limiter_decision.h.
ARGUMENTS = ("limiter", "n", "now_wall", "now_ext", "limit", "burst", "period", "key", "key_size")
#: What may be read at its return: limit, burst and period again, where they are known only then.
RESULTS = (
    "limit",
    "burst",
    "period",
    "ok",
    "error",
    "wait",
    "act_wall",
    "act_ext",
    "granted",
    "tokens",
    "last_wall",
    "last_ext",
)
CLOCKS = ("caller", "wall", "remote wall", "monotonic")
ROLES = ("decision", "wait", "sleep", "cancel")
_PLACE = re.compile(rf"(?P<pair>\()?(?P<base>{'|'.join(BASES)})(?:\+(?P<first>\d+))?(?(pair)\)\+(?P<second>\d+))")
_NOWHERE, _MEMORY, _AGAIN, MOST_OFFSET = 15, 16, 32, 4095


def place(text: str) -> int:
    """``ax`` (a register), ``limiter+8`` (the word in memory there) or ``(limiter+8)+16`` (the word at 16 from what
    that one points to) as bpf/limiter_decision.h has it. Raises ValueError.
    """
    match = _PLACE.fullmatch(text)
    offsets = [int(one) for one in match.group("first", "second") if one is not None] if match else []
    if (
        not match
        or max(offsets, default=0) > MOST_OFFSET
        or len(offsets) < (2 if match["pair"] else match["base"] in (registers.STACK, "limiter"))
    ):
        raise ValueError(
            f"{text!r}: one of {', '.join((*registers.GO, *registers.OTHERS))}, or one of {', '.join(BASES)} with"
            f" an offset up to {MOST_OFFSET} (ax+24)"
        )
    shifted = [at << shift | flag for at, shift, flag in zip(offsets, (8, 20), (_MEMORY, _AGAIN), strict=False)]
    return sum(shifted, BASES.index(match["base"]))


@dataclass(frozen=True)
class Step:
    """What a step of the wall clock by D does to a limiter that is in use. versions: a regular expression of those for
    which it holds. model: as
    ``LimiterLibrary.model``, where versions differ in it.
    """

    back: str
    forward: str
    versions: str = ".*"
    model: str = ""


@dataclass(frozen=True)
class Function:
    """A function whose calls are seen.

    symbol: behind the package's import path, or behind that of ``package``, where it is another's. role: ``decision``,
    without which nothing is seen; ``wait``, which may decide before it calls that and sleeps after it; ``sleep``, which
    a decision calls to impose its delay, or ``cancel``, by which a caller gives a delayed one back: entry only. entry,
    end: the programs at its first instruction and at each of its returns; functions with the same places may share one.
    arguments, results: what of ``ARGUMENTS``, ``RESULTS`` is where (``place``). loses: what is not seen without it.
    lock: offset in the receiver of the mutex that it takes first, by which layouts are told apart; versions: a regular
    expression of how those begin that have this one, for builds whose code does not say.
    argument_bytes: of all arguments; must be so in a copy. unless: seen only where the package has no function of these
    names, which it would call. Raises ValueError for a role, a name or a place that there is not.
    language: of ``LANGUAGES``; of others than Go, whose functions may be left by a return probe, ``returned`` is the
    program for that. inside: the entry's program may lie further inside than the first instruction.
    """

    symbol: str
    role: str
    entry: str
    end: str
    arguments: Mapping[str, str]
    results: Mapping[str, str]
    loses: str
    package: str = ""
    lock: int | None = None
    versions: str = ""
    argument_bytes: int = 0
    unless: tuple[str, ...] = ()
    language: str = "go"
    returned: str = ""
    inside: bool = False

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"{self.symbol}: no role {self.role!r}: one of {', '.join(ROLES)}")
        allowed = ARGUMENTS if self.role != "sleep" else ("wait",)
        for names, values in ((allowed, self.arguments), (RESULTS, self.results)):
            for name, where in values.items():
                if name not in names:
                    raise ValueError(f"{self.symbol}: nothing is called {name!r}: one of {', '.join(names)}")
                try:
                    place(where)
                except ValueError as error:
                    raise ValueError(f"{self.symbol}: {name} in {error}") from None

    def programs(self) -> dict[str, str]:
        """Name -> what C makes of it, of its programs."""
        begins = {
            "decision": "limiter_begins",
            "wait": "limiter_waits",
            "sleep": "limiter_sleeps",
            "cancel": "limiter_cancels",
        }[self.role]
        ends = {"decision": "limiter_ends", "wait": "limiter_woke"}.get(self.role)
        frame = "GOROUTINE" if self.language == "go" else "THREAD" if self.inside else "STACK"
        made = {self.entry: _program(self.entry, begins, self.arguments, frame)}
        if self.returned and ends:
            popped = "THREAD" if self.inside else "STACK_POPPED"
            made[self.returned] = _program(self.returned, ends, self.results, popped)
        made |= {self.end: _program(self.end, ends, self.results, frame)} if ends else {}
        return made


def _program(name: str, does: str, places: Mapping[str, str], frame: str) -> str:
    """LIBRARY: its number."""
    given = [f".frame = LIMITER_{frame}"] + [
        f".{one} = {place(places[one]) if one in places else _NOWHERE}" for one in dict.fromkeys((*ARGUMENTS, *RESULTS))
    ]
    at = f"(struct limiter_places){{{', '.join(given)}}}"
    return f"int {name}(struct pt_regs *ctx) {{ on_own_stack(ctx); return {does}(ctx, LIBRARY, {at}); }}\n"


@dataclass(frozen=True)
class Refused:
    """Versions that cannot be seen (a regular expression of how they begin), and why: follows ``MODULE VERSION`` in a
    sentence.
    """

    versions: str
    why: str


@dataclass(frozen=True)
class Seen:
    """How decisions are seen in a Go program that was built with the library.

    module: what it is called where its version is told. packages: import paths under which the functions are found, in
    vendor folders too. limiter: what one is called, its address follows.
    read: records of ``struct limiter_decision`` of this library -> columns of limiter_decision
    (agent/limiters/reading.py). refused: versions whose layout is another.
    copies: functions of these names are taken under any other import path, too, where they have as many bytes of
    arguments and their lock in the same place.
    """

    module: str
    packages: tuple[str, ...]
    functions: tuple[Function, ...]
    limiter: str
    read: Callable[[np.ndarray], dict[str, np.ndarray]]
    refused: tuple[Refused, ...] = ()
    copies: bool = False

    def symbols(self, role: str = "") -> dict[bytes, tuple[Function, ...]]:
        """Full name -> functions (several where layouts differ), of all or of one role."""
        found = dict[bytes, tuple[Function, ...]]()
        for one in self.functions:
            for package in (one.package,) if one.package else self.packages:
                if role in ("", one.role):
                    name = full_name(package, one.symbol)
                    found[name] = (*found.get(name, ()), one)
        return found

    def refusal(self, version: str) -> str:
        """Why this version is not seen; empty where it is."""
        return next(
            (f"{self.module} {version} {one.why}" for one in self.refused if re.match(one.versions, version)), ""
        )

    def text(self, number: int) -> str:
        """The C text of its programs. Raises ValueError where one name is given to different ones."""
        programs = dict[str, str]()
        for one in self.functions:
            for name, text in one.programs().items():
                if programs.setdefault(name, text) != text:
                    raise ValueError(f"{name} of {one.symbol} has other places elsewhere: give it another name")
        return "".join(programs.values()).replace("LIBRARY", str(number))


def full_name(package: str, symbol: str) -> bytes:
    """As the linker writes it: dots in the last element are escaped."""
    folder, slash, name = package.rpartition("/")
    return f"{folder}{slash}{name.replace('.', '%2e')}.{symbol}".encode()


@dataclass(frozen=True)
class LimiterLibrary:
    """A limiter library.

    library: its name, as in limiter_decision.library. clock: ``caller`` (the caller's time.Time: monotonic unless
    stripped), ``wall``, ``remote wall`` (of the host that keeps the state) or
    ``monotonic``. algorithm: how it counts, in words. steps: the first whose versions match holds. seen: None where its
    decisions are not seen from outside.
    model: the one that decides as this library does (agent/limiters/models/); empty where there is none, and the
    algorithm's is an estimate. Raises ValueError for a clock that there is not, or no steps.
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
