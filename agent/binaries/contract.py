"""The contract of a kind of binary, after opentelemetry-ebpf-profiler's interpreter Loader, Data and Instance.

1. An **analyzer** reads a file: does it belong to this kind, which version, which offsets. It is pure, takes
   descriptors and plain arguments, and runs in the unprivileged analyzer process (agent/targets/elf_analyzer.py),
   since any user can provide the file. It returns one ``Analysis`` for each thing that it found, or none.
2. An **attachment** is a BPF program and the places in the file where it goes.
3. An **instance** is what the agent keeps of an analysis while processes use the file. Uprobes belong to an inode,
   so one instance serves every process that runs or maps the file.

A kind is one file of agent/instruments/ (agent/instruments/kind.py) with its BPF program. agent/targets/ finds files
and processes, has them analyzed, and opens and closes instances; it does not depend on any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass
class Attachment:
    """A BPF program of the kind's family at file offsets of instructions. at_return: it runs when the function that
    begins there returns (a return probe: never in Go, which moves its stacks).
    """

    program: str
    offsets: list[int]
    at_return: bool = False


@dataclass
class Analysis:
    """An analyzer's result, as plain data, since it is sent between processes as JSON.

    attachments: in the order in which they are attached; returns first, so that no entry lacks its return. state:
    ``attached``, ``degraded`` or ``unavailable`` (nothing is attached), with reason and remedy as in probe_status.
    probe: its name there; empty: the family's. facts: for the kind's instance.
    """

    attachments: list[Attachment] = field(default_factory=list)
    state: str = "attached"
    reason: str = ""
    remedy: str = ""
    probe: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Analysis:
        """The inverse of ``plain``. Raises TypeError for other data."""
        return Analysis(**{**plain, "attachments": [Attachment(**one) for one in plain["attachments"]]})

    def plain(self) -> dict[str, Any]:
        return asdict(self)


#: (descriptors: the file and its companion, arguments of the request) -> one for each thing found. Raises ElfError and
#: OSError for a file that cannot be read.
Analyzer = Callable[..., list[Analysis]]


class Instance(Protocol):
    """One analysis of one file in use."""

    def close(self) -> object:
        """Removes its attachments, when no process uses the file. Does not wait."""
