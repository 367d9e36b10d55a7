"""The declaration of a limiter library: its names, the effect of a clock step, and where its decisions are observed.
Data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from agent.arch import registers

#: Where a place may begin: in a register, at the stack pointer (Go's arguments without a register are from 8 bytes
#: behind it on), or at the limiter's address. Its number is its index here (bpf/limiter_decision.h).
BASES = (*registers.GO, registers.STACK, "limiter", *registers.OTHERS)
LANGUAGES = ("go", "c", "c++", "rust")
#: What may be read at a function's entry, in the order of bpf/limiter_decision.h.
ARGUMENTS = ("limiter", "n", "now_wall", "now_ext", "limit", "burst", "period", "key", "key_size")
#: What may be read at its return; also limit, burst and period, if they are known only then.
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
    """A place in the form of bpf/limiter_decision.h: ``ax`` (a register), ``limiter+8`` (the word in memory there) or
    ``(limiter+8)+16`` (the word at 16 behind that pointer). Raises ValueError.
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
    """What a step of the wall clock by D does to a limiter in use. versions: a regular expression of the versions for
    which it holds. model: as ``LimiterLibrary.model``, if versions differ in it.
    """

    back: str
    forward: str
    versions: str = ".*"
    model: str = ""


@dataclass(frozen=True)
class Function:
    """A function whose calls are observed.

    symbol: behind the package's import path, or behind that of ``package`` if it is in another one. role: ``decision``,
    which is required; ``wait``, which may decide before it calls that and sleeps after it; ``sleep``, which a decision
    calls for its delay; or ``cancel``, by which a caller returns a delayed one (entry only). entry, end: the programs
    at its first instruction and at each of its returns; functions with the same places may share one. arguments,
    results: the ``place`` of ``ARGUMENTS``, ``RESULTS``. loses: what is not observed without it. lock: offset of the
    mutex in the receiver, which tells layouts apart. versions: a regular expression of how versions with this function
    begin, for builds whose code does not show it. argument_bytes: of all arguments; a copy must have the same. unless:
    observed only if the package has no function of these names, which would call it. language: of ``LANGUAGES``.
    returned: for other languages than Go, the program of the return probe. inside: whether the entry's program may be
    further inside than the first instruction. Raises ValueError for an unknown role, name or place.
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
        """Names of its programs -> their C text."""
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
    """LIBRARY in the text is replaced by the library's number."""
    given = [f".frame = LIMITER_{frame}"] + [
        f".{one} = {place(places[one]) if one in places else _NOWHERE}" for one in dict.fromkeys((*ARGUMENTS, *RESULTS))
    ]
    at = f"(struct limiter_places){{{', '.join(given)}}}"
    return f"int {name}(struct pt_regs *ctx) {{ on_own_stack(ctx); return {does}(ctx, LIBRARY, {at}); }}\n"


@dataclass(frozen=True)
class Refused:
    """Versions that cannot be observed (a regular expression of how they begin), and the reason, which follows ``MODULE
    VERSION`` in a sentence.
    """

    versions: str
    why: str


@dataclass(frozen=True)
class Seen:
    """How decisions are observed in a Go program that was built with the library.

    module: its name, for its version. packages: import paths of the functions, also in vendor folders. limiter: the
    name of a limiter; its address follows. read: records of ``struct limiter_decision`` of this library -> columns of
    limiter_decision (agent/limiters/reading.py). refused: versions with another layout. copies: functions of these
    names are also accepted under other import paths, if they have the same size of arguments and offset of the lock.
    """

    module: str
    packages: tuple[str, ...]
    functions: tuple[Function, ...]
    limiter: str
    read: Callable[[np.ndarray], dict[str, np.ndarray]]
    refused: tuple[Refused, ...] = ()
    copies: bool = False

    def symbols(self, role: str = "") -> dict[bytes, tuple[Function, ...]]:
        """Full name -> functions (several if layouts differ), of all roles or of one."""
        found = dict[bytes, tuple[Function, ...]]()
        for one in self.functions:
            for package in (one.package,) if one.package else self.packages:
                if role in ("", one.role):
                    name = full_name(package, one.symbol)
                    found[name] = (*found.get(name, ()), one)
        return found

    def refusal(self, version: str) -> str:
        """Why this version is not observed; empty if it is."""
        return next(
            (f"{self.module} {version} {one.why}" for one in self.refused if re.match(one.versions, version)), ""
        )

    def text(self, number: int) -> str:
        """The C text of its programs. Raises ValueError if one name is given to different ones."""
        programs = dict[str, str]()
        for one in self.functions:
            for name, text in one.programs().items():
                if programs.setdefault(name, text) != text:
                    raise ValueError(f"{name} of {one.symbol} has other places elsewhere: give it another name")
        return "".join(programs.values()).replace("LIBRARY", str(number))


def full_name(package: str, symbol: str) -> bytes:
    """The linker's name: dots in the last element are escaped."""
    folder, slash, name = package.rpartition("/")
    return f"{folder}{slash}{name.replace('.', '%2e')}.{symbol}".encode()


@dataclass(frozen=True)
class LimiterLibrary:
    """A limiter library.

    library: its name, as in limiter_decision.library. clock: ``caller`` (the caller's time.Time: monotonic unless
    stripped), ``wall``, ``remote wall`` (of the host with the state) or ``monotonic``. algorithm: as text. steps: the
    first with matching versions holds. seen: None if its decisions are not observed by uprobes. model: of
    agent/limiters/models/, if it decides exactly as the library; empty if there is none, when the algorithm's model is
    an estimate. Raises ValueError for an unknown clock, or no steps.
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
            raise ValueError(f"{self.library}: the effect of a step is missing")

    def step(self, version: str = "") -> Step:
        """The effect of a step on a version; for an unknown version, the last declared one."""
        return next((one for one in self.steps if version and re.fullmatch(one.versions, version)), self.steps[-1])
