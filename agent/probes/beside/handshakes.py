"""Attaches the tls family's programs to each OpenSSL found, and reports handshakes that their process did not live to
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch
from agent.kernel import bpf
from agent.kernel.detach import close_aside
from agent.probes.beside.layouts import Layouts
from agent.targets.asked import Ask, Release, Target

if TYPE_CHECKING:
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.kernel.steps import Steps
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

#: Also as Python wheels bundle it: libssl-81ffa89e.so.3.
LIBRARIES = rb"libssl(?:-\w+)?\.so(?:\.\w+)*"
_ABANDONED = 2
_PROGRAMS = {"client": "tls_client", "server": "tls_server", "unknown": "tls_either"}


class Handshakes:
    """Implements ``agent.contracts.Source``. decode: of the family's ring. Raises OSError where a map of the family
    cannot be used.
    """

    name = "tls"

    def __init__(
        self,
        family: Family,
        kernel: KernelSource,
        helper: Attacher,
        targets: Targets,
        decode: Callable[[np.ndarray], Batch],
    ) -> None:
        self._decode = decode
        self._family, self._helper, self._unseen = family, helper, targets.unseen
        dtype = kernel.loaded.wire.dtype
        self._event = dtype("tls_event")
        self._opened = bpf.HashMap(family.maps["tls_opened"], dtype("tls_key"), dtype("tls_open"))
        self._layouts = Layouts(family.maps["tls_layouts"], family.maps["tls_sites"])
        self._ended: list[np.ndarray] = []
        kernel.subscribe("tls_exits", self.on_exits)
        targets.library(
            LIBRARIES,
            Ask(
                "openssl",
                self._found,
                "tls",
                companion=(b"libssl", b"libcrypto"),
                names=(b"libssl.so.3", b"libssl.so.1.1"),
                first=True,
            ),
        )
        targets.exe(Ask("openssl", self._found, "tls", {"program": True}))

    def on_exits(self, records: np.ndarray) -> None:
        """Takes records of ``tls_exits``."""
        self._ended.append(records)

    def fds(self) -> list[int]:
        return []

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
        yield self._decode(rows)

    def close(self) -> None:
        """Nothing of its own: ``Targets`` lets go of the files."""

    def _found(self, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
        """Attaches to a file by what the examiner found in it."""
        if "hidden" in facts:
            return self._tell(
                target,
                "unavailable",
                f"contains OpenSSL {facts['hidden']}, but not the symbols that tell where: its handshakes are not seen",
                "install it with its symbols (not stripped), or linked with the system's libssl",
            )
        sites, free = facts["sites"], facts["free"] if "tls_free" in self._family.programs else None
        target.reserve(1 + (free is not None) + len(sites), 2 * len(sites) + (free is not None))
        known = self._layouts.add(facts, target.owner)
        links: list[int] = []
        try:
            yield from self._probe(sites, free, target.fd, links)
        except OSError:
            self._layouts.drop(known)
            close_aside(links)
            raise
        forget = None
        if not facts["implicit"]:
            forget = self._tell(
                target,
                "degraded",
                f"{facts['reason']}: handshakes inside SSL_read and SSL_write are not seen, failed ones as abandoned",
                "",
            )

        def release() -> None:
            close_aside(links)
            self._layouts.drop(known)
            if forget is not None:
                forget()

        return release

    def _tell(self, target: Target, state: str, reason: str, remedy: str) -> Release:
        return self._unseen.of("tls", target.path, target.owner, state, reason, remedy)

    def _probe(self, sites: list[tuple[str, int]], free: int | None, fd: int, links: list[int]) -> Steps[None]:
        """Returns first and entries last, so that no entry goes without its return."""
        programs, attaching = self._family.programs, self._helper.attaching
        links += yield from attaching(programs["tls_return"], fd, [offset for _, offset in sites], ret=True)
        if free is not None:
            links += yield from attaching(programs["tls_free"], fd, [free])
        for role, offset in sites:
            links += yield from attaching(programs[_PROGRAMS[role]], fd, [offset])
