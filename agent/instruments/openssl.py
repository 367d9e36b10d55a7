"""OpenSSL, shared or built in: attaches the tls family's programs, and reports handshakes whose process ended first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from agent.batch import Batch
from agent.binaries import openssl
from agent.binaries.contract import Analysis, Attachment
from agent.contracts import Pending
from agent.instruments.kind import BinaryKind, KindContext, Uprobes
from agent.instruments.openssl_layouts import Layouts
from agent.kernel import bpf

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.targets.asked import Target

#: Also as bundled in Python wheels: libssl-81ffa89e.so.3.
LIBRARIES = rb"libssl(?:-\w+)?\.so(?:\.\w+)*"
_ABANDONED = 2
_PROGRAMS = {"client": "tls_client", "server": "tls_server", "unknown": "tls_either"}


class Handshakes(Uprobes, Pending):
    """Implements ``agent.contracts.Source``. Raises OSError if a map of the family cannot be used."""

    name = "tls"

    def __init__(self, context: KindContext) -> None:
        family, dtype = context.family, context.kernel.loaded.wire.dtype
        super().__init__(family, context.helper, context.targets.unprobed_programs)
        self._decode = family.probe.rings[0].decode
        self._event = dtype("tls_event")
        self._opened = bpf.HashMap(family.maps["tls_opened"], dtype("tls_key"), dtype("tls_open"))
        self._layouts = Layouts(family.maps["tls_layouts"], family.maps["tls_sites"])
        self._ended: list[np.ndarray] = []
        context.kernel.subscribe("tls_exits", self.on_exits)

    def on_exits(self, records: np.ndarray) -> None:
        """Takes records of ``tls_exits``."""
        self._ended.append(records)

    def pending(self, now_ns: int) -> bool:
        """Whether a process ended."""
        return bool(self._ended)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Handshakes that were open when their process ended."""
        del now_ns
        if not self._ended:
            return
        ends = np.concatenate(self._ended)
        self._ended.clear()
        keys, values = self._opened.read()
        which = np.searchsorted(ends["proc"]["pid"], keys["pid"], sorter=(order := np.argsort(ends["proc"]["pid"])))
        ends = ends[order][np.minimum(which, len(ends) - 1)]
        cut_off = ends["proc"]["pid"] == keys["pid"]
        if not cut_off.any():
            return
        keys, values, ends = keys[cut_off], values[cut_off], ends[cut_off]
        self._opened.drop(keys)
        rows = np.zeros(len(keys), self._event)
        for name in ("t_ns", "proc"):
            rows[name] = ends[name]
        for name in ("sock", "in_call_ns", "calls"):
            rows[name] = values[name]
        rows["proc"]["tid"] = np.where(values["tid"], values["tid"], ends["proc"]["pid"])
        rows["duration_ns"] = ends["t_ns"] - values["start_ns"]
        rows["result"], rows["verify_result"] = _ABANDONED, 0xFFFFFFFF
        versions = self._layouts.versions()
        rows["library_version"] = [versions.get(number, "").encode() for number in values["layout"].tolist()]
        rows["library"] = b"openssl"
        yield cast("Batch", self._decode(rows))

    def close(self) -> None:
        """Nothing to close: ``Targets`` releases the files."""

    def prepare(self, target: Target, analysis: Analysis) -> Callable[[], object]:
        """Gives the kernel's side the field offsets of this OpenSSL."""
        return partial(self._layouts.drop, self._layouts.add(analysis.facts, target.owner))


def analyze(fds: list[int], program: bool = False) -> list[Analysis]:
    """A libssl, with its libcrypto as second file, or a program that contains an OpenSSL. program: it may be one
    without OpenSSL, or not an ELF file.
    """
    facts = openssl.facts(fds, program)
    if facts is None:
        return []
    if "hidden" in facts:
        return [
            Analysis(
                state="unavailable",
                reason=f"contains OpenSSL {facts['hidden']}, but not the symbols that tell where: its handshakes are"
                " not seen",
                remedy="install it with its symbols (not stripped), or linked with the system's libssl",
            )
        ]
    sites, free = facts["sites"], facts["free"]
    found = Analysis([Attachment("tls_return", [offset for _, offset in sites], at_return=True)], facts=facts)
    found.attachments += [Attachment("tls_free", [free])] if free is not None else []
    found.attachments += [Attachment(_PROGRAMS[role], [offset]) for role, offset in sites]
    if not facts["implicit"]:
        found.state = "degraded"
        found.reason = (
            f"{facts['reason']}: handshakes inside SSL_read and SSL_write are not seen, failed ones as abandoned"
        )
    return [found]


def begin(kind: BinaryKind, context: KindContext) -> Iterable[Source]:
    handshakes = Handshakes(context)
    kind.watch(context.targets, handshakes.found, program=True)
    return [handshakes]


KIND = BinaryKind(
    name="openssl",
    family="tls",
    analyze=analyze,
    libraries=LIBRARIES,
    executables=True,
    names=(b"libssl.so.3", b"libssl.so.1.1"),
    first=True,
    companion=(b"libssl", b"libcrypto"),
    begin=begin,
)
