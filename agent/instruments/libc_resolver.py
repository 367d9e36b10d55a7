"""getaddrinfo of C libraries: the names that are looked up."""

from __future__ import annotations

from agent.binaries.analyses import functions
from agent.instruments.kind import BinaryKind
from agent.instruments.libc_clock import LIBRARIES

KIND = BinaryKind(
    name="libc resolver",
    family="dns",
    analyze=functions,
    libraries=LIBRARIES,
    arguments={"names": ["getaddrinfo"], "programs": {"dns_in": ["getaddrinfo"]}, "returned": "dns_out"},
)
