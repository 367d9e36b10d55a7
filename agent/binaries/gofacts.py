"""What can be probed in a Go program, by the declarations of limiter libraries, and its other limiters. For the ELF
analyzer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from agent.arch import x86_code
from agent.arch.machine import DECODED, DECODED_GO
from agent.binaries import gobuild
from agent.binaries.contract import Analysis, Attachment
from agent.binaries.elf import ElfError, contains_32
from agent.binaries.golibraries import Matched, chosen, match, root
from agent.binaries.gosym import GoBinary, GoFunction
from agent.limiters import catalogue
from agent.limiters.library import Seen

REGISTER_ABI_MINOR = 17
#: A path element of a limiter package (``ratelimit``, ``go-limiter``, ``redis_rate``), possibly followed by a version.
_LIMITER = re.compile(
    rb"(?:[\w~-]*[_-])?(?:rate[_-]?limit(?:er|ers|ing|s)?|limiters?|throttled?|tollbooth|redis_rate|leaky-?bucket|token-?bucket|slidingwindow|"
    rb"sentinel-golang|gubernator|httprate|gcra|go-rate)(?:\.v\d+)?"
)
_HINT = re.compile(
    rb"limit|throttle|tollbooth|redis_rate|bucket|slidingwindow|sentinel-golang|gubernator|httprate|gcra|go-rate"
)
MOST_OTHERS, MOST_RETURNS = 4, 256
#: Where the net package's own resolver looks a name up, once it is known not to be an address; with these arguments
#: since go1.18.
LOOKUP, LOOKUP_MINOR = b"net.(*Resolver).goLookupIPCNAMEOrder", 18


@dataclass
class Probed:
    """What can be attached in a Go binary for a library that it contains.

    library: empty if unknown. state, reason, remedy: as in probe_status. sites: (program, file offsets). unversioned:
    why library_version is unknown. mapped: the file is a shared library. packages: import paths of the library in it.
    modules: of these packages. program: the program's name; build_id: of this build; empty if not recorded.
    """

    library: str = ""
    state: str = "attached"
    reason: str = ""
    remedy: str = ""
    go_version: str = ""
    library_version: str = ""
    unversioned: str = ""
    mapped: bool = False
    sites: list[tuple[str, list[int]]] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    program: str = ""
    build_id: str = ""

    def analysis(self) -> Analysis:
        facts = asdict(self)
        state, reason, remedy = (facts.pop(name) for name in ("state", "reason", "remedy"))
        return Analysis([Attachment(*site) for site in facts.pop("sites")], state, reason, remedy, facts=facts)


@dataclass
class FoundLimiters:
    """Limiters in a Go binary. probed: one per library that it contains, or one without a name if it might contain
    some. others: limiter packages that are not probed.
    """

    probed: list[Probed] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def resolver(fd: int) -> tuple[int, list[int]] | None:
    """File offsets of the name look-up of a Go program's own resolver, and of its returns; None if there is none, or it
    cannot be probed. Raises OSError.
    """
    try:
        binary = GoBinary(fd)
        build = binary.build
        if build is None or build.minor is None or build.minor < LOOKUP_MINOR or "noregabi" in build.go_version:
            return None
        found = binary.functions(binary.names([LOOKUP]))
        return _paths(binary, found[0]) if found else None
    except ElfError:
        return None


def analyze(fd: int) -> FoundLimiters | None:
    """What can be attached in an executable file; None if it is no Go binary or contains no limiter.

    Functions that cannot be probed reliably are ``unavailable`` with the reason. Raises OSError.
    """
    go_version, others = "", list[str]()
    seen = catalogue.seen()
    try:
        binary = GoBinary(fd)
        if binary.build is None:
            return None
        go_version = binary.build.go_version
        names = binary.names(
            [symbol for one in seen.values() for symbol in one.symbols()],
            {one.symbol.encode() for library in seen.values() if library.copies for one in library.functions},
        )
        found = binary.functions(names)
        matched = {name: library for name, one in seen.items() if (library := match(one, names.values(), found))}
        probed = [_probed(binary, name, seen[name], library) for name, library in matched.items()]
        roots = {root(package, binary.build) for library in matched.values() for package in library.packages}
        others = binary.packages(_HINT, lambda package: _is_other(package, roots), MOST_OTHERS)
    except ElfError as error:
        probed = (
            [Probed(state="unavailable", reason=str(error), go_version=go_version)]
            if go_version
            else _of_32_bits(fd, seen)
        )
    return FoundLimiters(probed, others) if probed or others else None


def _paths(binary: GoBinary, function: GoFunction) -> tuple[int, list[int]]:
    """File offsets at which a function's registers are as at its beginning, and of its returns. Raises ElfError if they
    are uncertain, or too many.
    """
    if not x86_code.begins_as_go(binary.read(function.entry, 4)):
        raise ElfError("it does not begin as the Go compiler begins a function")
    places = [binary.file_offset(at) for at in binary.returns(function)]
    if len(places) > MOST_RETURNS:
        raise ElfError(f"a function of {len(places)} returns gets no probes: {MOST_RETURNS} are allowed")
    return binary.file_offset(function.entry + x86_code.stack_check(binary.read(function.entry, 16))), places


def _is_other(package: bytes, roots: Iterable[str]) -> bool:
    """Whether it is a limiter package outside of ``roots``, modules that are reported otherwise."""
    path = package.rpartition(b"/vendor/")[2].decode("utf-8", "replace") + "/"
    return not any(path.startswith(root + "/") for root in roots) and any(
        _LIMITER.fullmatch(element) for element in package.split(b"/")
    )


def _probed(binary: GoBinary, name: str, seen: Seen, matched: Matched) -> Probed:
    assert binary.build is not None
    packages = matched.packages[:MOST_OTHERS]
    modules = sorted({root(package, binary.build) for package in packages})
    one = Probed(
        name, go_version=binary.build.go_version, packages=packages, modules=modules, program=binary.build.program
    )
    try:
        one.build_id = _build_id(binary)
        _version(binary, seen, matched, one)
        _refuse(binary, seen, one)
        if one.state == "attached":
            _place(binary, matched, one)
    except ElfError as error:
        one.state, one.reason = "unavailable", str(error)
    return one


def _build_id(binary: GoBinary) -> str:
    """Go's build id of the content, its last part; else the GNU one."""
    header = binary.section_header(".note.go.buildid")
    if header is None or not 16 < int(header["size"]) <= 256:
        return binary.build_id
    return binary.read(int(header["addr"]), int(header["size"]))[16:].decode("ascii", "replace").rpartition("/")[2]


def _version(binary: GoBinary, seen: Seen, matched: Matched, one: Probed) -> None:
    """Sets the version, from the build information, else from the path of the source, which has it if modules were
    used.
    """
    assert binary.build is not None
    if matched.copies:
        one.unversioned = f"a copy of it: {', '.join(sorted(matched.copies))}"
        return
    one.library_version = binary.build.modules.get(root(matched.packages[0], binary.build), "")
    if not one.library_version:
        path = next(filter(None, map(binary.source_path, seen.packages)), "")
        in_path = re.search(re.escape(seen.module) + r"@(v[\w.+-]+)/", path)
        if in_path:
            one.library_version = in_path[1]
        else:
            where = f"compiled from {path}, " if path else ""
            one.unversioned = f"version not recorded: {where}built by GOPATH or a vendor folder, which keep none"


def _of_32_bits(fd: int, seen: Mapping[str, Seen]) -> list[Probed]:
    """A 32-bit Go program with a library: reported, since it cannot be probed."""
    why = "a 32-bit Go program: limiter probes are made for 64-bit ones"
    try:
        return [
            Probed(name, "unavailable", why, f"build it with {DECODED_GO}")
            for name, one in seen.items()
            if any(contains_32(fd, (gobuild.MAGIC, symbol)) for symbol in one.symbols("decision"))
        ]
    except (ElfError, OSError):
        return []


def _refuse(binary: GoBinary, seen: Seen, one: Probed) -> None:
    """Sets the reason if registers or the struct are not the known ones."""
    minor = binary.build.minor if binary.build else None
    if not binary.machine.decodes:
        one.reason, one.remedy = f"limiter probes are made for {DECODED} only", f"build it with {DECODED_GO}"
    elif minor is None or minor < REGISTER_ABI_MINOR or "noregabi" in one.go_version:
        one.reason = (
            f"built by {one.go_version or 'an unknown Go'}: calls pass arguments in registers only since"
            f" go1.{REGISTER_ABI_MINOR}"
        )
    else:
        one.reason = seen.refusal(one.library_version)
    if one.reason:
        one.state = "unavailable"
        one.remedy = one.remedy or f"rebuild the program with a current Go and a current {seen.module}"


def _place(binary: GoBinary, matched: Matched, one: Probed) -> None:
    """Computes the file offsets. Raises ElfError if there is none for decisions; the others are optional."""
    problems, decisions = list[str](), 0
    locks = dict[str, int | None]()
    for function, candidates in matched.functions:
        try:
            declared = chosen(binary, function, candidates, matched.copies, locks, one.library_version)
            entry, places = _paths(binary, function)
        except ElfError as error:
            problems.append(f"{candidates[0].loses} are not seen: {error}")
            continue
        decisions += declared.role == "decision"
        one.sites += [(declared.entry, [entry]), *([(declared.end, places)] if declared.end else [])]
    if matched.inlined and not decisions:
        one.remedy = f"build it with -gcflags={matched.packages[0]}=-l, and without -pgo"
        raise ElfError(f"{', '.join(matched.inlined)} is inlined wherever it is called, so nothing can be probed")
    if problems and matched.copies:
        unsure = any("not certain" in problem for problem in problems)
        one.remedy = (
            f"declare its function in limiter_functions{', or build it optimised (no -N, no -race)' if unsure else ''}"
        )
    if not decisions:
        raise ElfError(problems[0] if problems else "nothing of it decides")
    if problems:
        one.state, one.reason = "degraded", "; ".join(problems)
