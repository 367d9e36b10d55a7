"""The resolver of Go programs, which do not use the C library's: the names that are looked up."""

from __future__ import annotations

from agent.binaries import gofacts
from agent.binaries.contract import Analysis, Attachment
from agent.instruments.kind import BinaryKind


def analyze(fds: list[int]) -> list[Analysis]:
    found = gofacts.resolver(fds[0])
    if found is None:
        return []
    entry, returns = found
    return [Analysis([Attachment("dns_go_out", returns), Attachment("dns_go_in", [entry])])]


KIND = BinaryKind(name="go resolver", family="dns", analyze=analyze, executables=True)
