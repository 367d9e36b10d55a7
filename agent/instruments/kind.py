"""The declaration of a kind of binary, and the default handling of its files: its programs are attached where its
analyzer says, and removed when no process uses the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent.binaries.analyses import discover
from agent.binaries.contract import Analysis, Analyzer, Instance
from agent.errors import AgentError
from agent.kernel.probe import Parts, Probe, Program
from agent.targets.asked import ProbeRequest

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.loaded_families import Family
    from agent.kernel.steps import Steps
    from agent.targets.asked import Found, Target
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets
    from agent.targets.unprobed import UnprobedPrograms


@dataclass(frozen=True)
class KindContext:
    """The context of a loaded family's set-up. settings: the section that the family names. shared: common data of all
    its kinds.
    """

    family: Family
    kernel: KernelSource
    helper: Attacher
    targets: Targets
    settings: Any = None
    shared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BinaryKind:
    """A kind of binary: ``KIND`` of a file in agent/instruments/.

    name: of the kind and its analyzer. family: its BPF programs' family. libraries: which shared libraries, a regular
    expression of whole file names. executables: whether every executable is analyzed. arguments, names, first,
    companion: as in ``ProbeRequest``. programs, sources: BPF programs of the family that only this kind needs, and
    their C files in bpf/, after the family's own. begin: requests files and opens instances in another manner than
    ``Uprobes``; returns sources.
    """

    name: str
    family: str
    analyze: Analyzer
    libraries: bytes = b""
    executables: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[bytes, ...] = ()
    first: bool = False
    companion: tuple[bytes, bytes] | None = None
    programs: tuple[Program, ...] = ()
    sources: tuple[str, ...] = ()
    begin: Callable[[BinaryKind, KindContext], Iterable[Source]] | None = None

    def watch(self, targets: Targets, found: Found, **of_executables: Any) -> None:
        """Has its files found and analyzed from now on. found: opens an instance. of_executables: further arguments for
        executables.
        """
        arguments = dict(self.arguments)
        if self.libraries:
            ask = ProbeRequest(self.name, found, self.family, arguments, self.companion, self.names, self.first)
            targets.library(self.libraries, ask)
        if self.executables:
            targets.exe(ProbeRequest(self.name, found, self.family, arguments | of_executables))


def extended(probes: Mapping[str, Probe]) -> dict[str, Probe]:
    """The families by name, with the programs of their kinds. Raises AgentError for a kind of an unknown family."""
    out = dict(probes)
    for kind in discover().values():
        if kind.family not in out:
            raise AgentError(
                f"agent/instruments/: the kind {kind.name!r} has an unknown family {kind.family!r}",
                remedy=f"one of: {', '.join(out)}",
            )
        probe = out[kind.family]
        out[kind.family] = replace(probe, programs=(*probe.programs, *kind.programs), more=(*probe.more, *kind.sources))
    return out


def setup(family: Family, kernel: KernelSource, helper: Attacher, targets: Targets, parts: Parts) -> list[Source]:
    """``Probe.setup`` of a family with kinds of binaries: has their files found from now on; returns their sources."""
    context = KindContext(family, kernel, helper, targets, parts.settings)
    sources: list[Source] = []
    for kind in discover().values():
        if kind.family == context.family.probe.name:
            if kind.begin is not None:
                sources += kind.begin(kind, context)
            else:
                kind.watch(
                    context.targets, Uprobes(context.family, context.helper, context.targets.unprobed_programs).found
                )
    return sources


class Uprobes:
    """Opens instances of a family's kinds. Subclasses prepare the kernel's side for a file."""

    def __init__(self, family: Family, helper: Attacher, unseen: UnprobedPrograms) -> None:
        self._family, self._helper, self._unseen = family, helper, unseen

    def found(self, target: Target, analysis: Analysis) -> Steps[Instance | None]:
        """Attaches what the analysis says, or reports why it cannot; None without attachments. Raises OSError, with
        nothing attached.
        """
        if analysis.state == "unavailable":
            return Attached((), render(self._unseen, target, analysis, self._family.probe.name))
        programs = self._family.programs
        attachments = [one for one in analysis.attachments if one.offsets and one.program in programs]
        if not attachments:
            return None
        target.reserve(len(attachments), sum(len(one.offsets) for one in attachments))
        undo, links = self.prepare(target, analysis), list[int]()
        try:
            for one in attachments:
                links += yield from self._helper.attaching(
                    programs[one.program], target.fd, one.offsets, ret=one.at_return
                )
        except OSError:
            Attached(links, undo).close()
            raise
        if analysis.state == "attached":
            return Attached(links, undo)
        return Attached(links, undo, render(self._unseen, target, analysis, self._family.probe.name))

    def prepare(self, target: Target, analysis: Analysis) -> Callable[[], object]:
        """Runs before the first attachment; returns a function that undoes it. Raises OSError."""
        del target, analysis
        return bool


class Attached:
    """An instance. links: descriptors of its attachments. undo: called after they are removed."""

    def __init__(self, links: Iterable[int], *undo: Callable[[], object]) -> None:
        self._links, self._undo = list(links), undo

    def close(self) -> None:
        from agent.kernel.detach import close_aside

        if self._links:
            close_aside(self._links)
        for one in self._undo:
            one()


def render(unseen: UnprobedPrograms, target: Target, analysis: Analysis, family: str) -> Callable[[], object]:
    """Shows in ``status`` what is not observed of a file; returns a function that removes that."""
    output = analysis.state, analysis.reason, analysis.remedy
    return unseen.of(analysis.probe or family, target.path, target.owner, *output)
