"""Settings of the time daemon queries: which daemons and servers, and how often. Imports nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.common.settings import any_of, one_or_list, parse_texts, seconds, setting, value
from agent.errors import USAGE, AgentError

#: The shortest interval between two queries of a server: the terms of pool.ntp.org and RFC 4330 section 10 (15 s).
#: Loopback has none.
LEAST_S, MOST_S = 15.0, 86400.0
MAX_SERVERS = 8


def split(server: str, port: int) -> tuple[str, int]:
    """(host, port) of ``host``, ``host:port``, ``1::2`` or ``[1::2]:port``. Raises AgentError (exit code 2)."""
    found = re.fullmatch(
        r"\[([0-9a-fA-F:.%\w]+)\](?::(\d+))?|([^:\[\]\s]+)(?::(\d+))?|([0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)",
        server,
    )
    number = int((found[2] or found[4] or port) if found else 0)
    if found is None or not 0 < number < 65536:
        raise AgentError(
            f"{server!r} is not a time server",
            why="must be a name or an address, with :port if the port is not 123",
            remedy="tickscope config example ntp",
            exit_code=USAGE,
        )
    return found[1] or found[3] or found[5], number


def _local(server: str) -> bool:
    host = split(server, 123)[0]
    return host in ("localhost", "::1") or host.startswith("127.")


def _servers(given: object) -> tuple[str, ...]:
    found = parse_texts(given, f"a list of at most {MAX_SERVERS} names or addresses", MAX_SERVERS)
    for server in found:
        split(server, 123)
    return found


def _daemon(given: object) -> str:
    if given and (not isinstance(given, str) or not _local(given)):
        raise ValueError("must be address:port of this host's loopback, or empty")
    return str(given or "")


_SERVERS = value(
    _servers,
    f"at most {MAX_SERVERS} names or addresses",
    schema=lambda: one_or_list({"type": "string"}, MAX_SERVERS),
)
_DAEMON = value(
    _daemon,
    "address:port of loopback, or empty for never",
    schema=lambda: any_of({"type": "string"}, {"const": False}),
)


@dataclass(frozen=True)
class NtpSettings:
    """The settings. Without servers nothing is sent off this host."""

    servers: tuple[str, ...] = setting((), _SERVERS, "time servers to query by SNTP: [time.example.org]; empty: none")
    interval_s: float = setting(64.0, seconds(0.1, MOST_S), "interval between two queries of a server", key="interval")
    daemon_interval_s: float = setting(
        8.0, seconds(0.1, MOST_S), "interval between two queries of a local daemon", key="daemon_interval"
    )
    chrony: str = setting("127.0.0.1:323", _DAEMON, "address at which chronyd is queried; '' for never")
    ntpd: str = setting("127.0.0.1:123", _DAEMON, "address at which ntpd is queried; '' for never")

    def check(self) -> None:
        if self.interval_s < LEAST_S and not all(map(_local, self.servers)):
            raise AgentError(
                f"ntp.interval cannot be {self.interval_s:g} s",
                why=f"servers on other hosts may be queried at most every {LEAST_S:g} s",
                remedy="tickscope config example ntp",
                exit_code=USAGE,
            )
