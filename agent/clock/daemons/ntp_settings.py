"""The setting `ntp`: which time daemons are asked, and which servers. Checked where it enters; imports nothing
heavy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agent.common.settings import Section
from agent.errors import USAGE, AgentError

#: What a server may be asked at most: pool.ntp.org's terms and RFC 4330 section 10 (never below 15 s); loopback is
#: nobody's cost.
LEAST_S, MOST_S = 15.0, 86400.0
MAX_SERVERS = 8
_SECTION = Section("ntp")


@dataclass(frozen=True)
class NtpConfig:
    """servers: ``host`` or ``host:port`` asked by SNTP every interval_s; none by default, and then nothing leaves this
    host.
    daemon_interval_s: between two looks at the daemons of this host. chrony, ntpd: where they answer, empty for never.
    """

    servers: tuple[str, ...] = ()
    interval_s: float = 64.0
    daemon_interval_s: float = 8.0
    chrony: str = "127.0.0.1:323"
    ntpd: str = "127.0.0.1:123"

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> NtpConfig:
        """Keys: servers, interval, daemon_interval (``64s``, ``2m`` or seconds), chrony, ntpd. Raises AgentError (exit
        code 2).
        """
        known = {f.name.removesuffix("_s"): f.name for f in fields(cls)}
        _SECTION.known(values, known)
        made = cls(**{known[key]: _checked(key, value) for key, value in values.items()})
        for server in made.servers:
            split(server, 123)
            if not _loopback(server) and made.interval_s < LEAST_S:
                raise _wrong(
                    f"ntp.interval cannot be {made.interval_s:g} s",
                    f"servers elsewhere may be asked every {LEAST_S:g} s at most",
                )
        return made


def split(server: str, port: int) -> tuple[str, int]:
    """(host, port) of ``host``, ``host:port``, ``1::2`` or ``[1::2]:port``. Raises AgentError (exit code 2)."""
    found = re.fullmatch(
        r"\[([0-9a-fA-F:.%\w]+)\](?::(\d+))?|([^:\[\]\s]+)(?::(\d+))?|([0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)",
        server,
    )
    number = int((found[2] or found[4] or port) if found else 0)
    if found is None or not 0 < number < 65536:
        raise _wrong(f"{server!r} is no time server", "it is a name or an address, with :port where that is not 123")
    return found[1] or found[3] or found[5], number


def _loopback(server: str) -> bool:
    host = split(server, 123)[0]
    return host in ("localhost", "::1") or host.startswith("127.")


def _wrong(what: str, why: str) -> AgentError:
    return AgentError(what, why=why, remedy="see ntp in deploy/tickscope.yaml", exit_code=USAGE)


def _checked(key: str, value: object) -> Any:
    if key == "servers":
        return _SECTION.texts(key, value, f"a list of at most {MAX_SERVERS} names or addresses", MAX_SERVERS)
    if key not in ("chrony", "ntpd"):
        return _SECTION.seconds(key, value, 0.1, MOST_S)
    if value and (not isinstance(value, str) or not _loopback(value)):
        raise _SECTION.wrong(key, value, "it is address:port of this host's loopback, or empty")
    return value or ""
