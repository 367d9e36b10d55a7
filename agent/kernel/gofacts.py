"""What can be probed in a Go program, and which limiters it contains beside those that are probed. For the examiner."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from agent.kernel import gobuild
from agent.kernel.elf import X86_64, ElfError, contains_32
from agent.kernel.gosym import Function, GoBinary

MODULE = "golang.org/x/time"
PACKAGE = "golang.org/x/time/rate"
RESERVE, WAIT = (f"{PACKAGE}.(*Limiter).{name}".encode() for name in ("reserveN", "wait"))
#: A pair of programs for each function: at its entry and at its returns.
PROGRAMS = {b"reserveN": ("limiter_reserve", "limiter_reserved"), b"wait": ("limiter_wait", "limiter_waited")}
REGISTER_ABI_MINOR = 17
#: Limiter's first fields were in another order until 2020.
_OLD_LAYOUT = re.compile(r"v0\.0\.0-(201\d|2020(0[1-5]))")
#: What a function with a frame starts with (cmd/internal/obj/x86, stacksplit): CMPQ SP, 16(R14), or LEAQ -n(SP), R12 for a large one.
_PROLOGUES = (b"\x49\x3b\x66\x10", b"\x4c\x8d\x64\x24", b"\x4c\x8d\xa4\x24")
#: An element of the path of a package that limits (``ratelimit``, ``go-limiter``, ``redis_rate``), maybe with a version behind it.
_LIMITER = re.compile(
    rb"(?:[\w~-]*[_-])?(?:rate[_-]?limit(?:er|ers|ing|s)?|limiters?|throttled?|tollbooth|redis_rate|leaky-?bucket|token-?bucket|slidingwindow|"
    rb"sentinel-golang|gubernator)(?:\.v\d+)?"
)
_HINT = re.compile(rb"limit|throttle|tollbooth|redis_rate|bucket|slidingwindow|sentinel-golang|gubernator")
MOST_OTHERS, MOST_RETURNS = 4, 256


@dataclass
class Probed:
    """What can be attached in a Go binary with the package. state, reason and remedy as in probe_status; sites: (program, file offsets); unversioned: why library_version
    is not known.
    """

    state: str = "attached"
    reason: str = ""
    remedy: str = ""
    go_version: str = ""
    library_version: str = ""
    unversioned: str = ""
    sites: list[tuple[str, list[int]]] = field(default_factory=list)


@dataclass
class GoFacts(Probed):
    """A Go binary that contains the package (else its state is empty), or might, or another limiter. others: limiter packages that are not probed."""

    others: list[str] = field(default_factory=list)


def _is_limiter(package: bytes) -> bool:
    return any(_LIMITER.fullmatch(element) for element in package.split(b"/"))


def facts(fds: list[int]) -> dict[str, Any] | None:
    """As ``examine``, plain."""
    found = examine(fds[0])
    return None if found is None else asdict(found)


def examine(fd: int) -> GoFacts | None:
    """What can be attached in an executable file; None where it is no Go binary or contains no limiter.

    A Go binary that cannot be probed with certainty comes back ``unavailable`` with the reason. Raises OSError.
    """
    one = GoFacts()
    try:
        binary = GoBinary(fd)
        if binary.build is None:
            return None
        one.go_version = binary.build.go_version
        one.others = binary.packages(_HINT, _is_limiter, MOST_OTHERS)
        found = binary.functions([RESERVE, WAIT])
        if not found:
            one.state = ""
            return one if one.others else None
        _version(binary, one)
        _refuse(binary, one)
        if one.state == "attached":
            _place(binary, found, one)
    except ElfError as error:
        if not one.go_version:
            return _of_32_bits(fd)
        one.state, one.reason = "unavailable", str(error)
    return one


def _version(binary: GoBinary, one: GoFacts) -> None:
    """From the build information, else from the path of the source, which has it where modules were used."""
    assert binary.build is not None
    one.library_version = binary.build.modules.get(MODULE, "")
    if not one.library_version:
        path = binary.source_path(PACKAGE)
        in_path = re.search(r"golang\.org/x/time@(v[\w.+-]+)/", path)
        if in_path:
            one.library_version = in_path[1]
        else:
            where = f"compiled from {path}, " if path else ""
            one.unversioned = f"version not recorded: {where}built by GOPATH or a vendor folder, which keep none"


def _of_32_bits(fd: int) -> GoFacts | None:
    """A 32-bit Go program with the package: told, since it cannot be probed."""
    try:
        contained = contains_32(fd, (gobuild.MAGIC, RESERVE))
    except (ElfError, OSError):
        return None
    if not contained:
        return None
    return GoFacts("unavailable", "a 32-bit Go program: limiter probes are made for 64-bit ones", "build it with GOARCH=amd64")


def _refuse(binary: GoBinary, one: GoFacts) -> None:
    """Sets the reason where the registers or the struct are not the known ones."""
    minor = binary.build.minor if binary.build else None
    if binary.machine != X86_64:
        one.reason = "limiter probes are made for x86-64 only"
    elif minor is None or minor < REGISTER_ABI_MINOR or "noregabi" in one.go_version:
        one.reason = f"built by {one.go_version or 'an unknown Go'}: calls pass arguments in registers only since go1.{REGISTER_ABI_MINOR}"
    elif _OLD_LAYOUT.match(one.library_version):
        one.reason = f"{MODULE} {one.library_version} has another struct layout"
    if one.reason:
        one.state, one.remedy = "unavailable", "rebuild the program with a current Go and a current golang.org/x/time"


def _place(binary: GoBinary, found: list[Function], one: GoFacts) -> None:
    """Works out the file offsets. Without wait's, Wait's early refusals are missed, no more."""
    for function in sorted(found, key=lambda f: f.name.endswith("wait")):
        entry, returns = PROGRAMS[function.name.rpartition(".")[2].encode()]
        try:
            if not binary.read(function.entry, 4).startswith(_PROLOGUES):
                raise ElfError("it does not begin as the Go compiler begins a function")
            places = [binary.file_offset(at) for at in binary.returns(function)]
            if len(places) > MOST_RETURNS:
                raise ElfError(f"a function of {len(places)} returns gets no probes: {MOST_RETURNS} are allowed")
        except ElfError as error:
            if entry == "limiter_reserve":
                raise
            one.state, one.reason = "degraded", f"waits that are refused early are not seen: {error}"
            continue
        one.sites += [(entry, [binary.file_offset(function.entry)]), (returns, places)]
    if not any(program == "limiter_reserve" for program, _ in one.sites):
        raise ElfError("reserveN is not there: probably inlined by profile-guided optimisation")
