"""A server that is asked over HTTP, as the settings name it: its URL, its login, its certificates. Shared by the kinds
of brokers that have such an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from agent.common.address import with_port
from agent.common.http_get import HttpClient, HttpDown
from agent.common.tls import client_context
from agent.errors import USAGE, AgentError
from agent.queues.server_section import BadUrl, ServerSection

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True)
class HttpUrl:
    """``http[s]://[user:password@]host[:port][?option=value]``. Each kind adds its options as fields."""

    host: str
    port: int
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def server(self) -> str:
        return with_port(self.host, self.port)

    def client(self, server: HttpServer, port: int | None = None) -> HttpClient:
        """A client for this address, or for another port of its host."""
        return HttpClient(self.host, port or self.port, server.tls if self.tls else None)


def http_url(
    url: str, title: str, example: str, port: int, options: Mapping[str, Callable[[str], object]]
) -> dict[str, Any]:
    """The fields of a URL: those of HttpUrl, and the options that it has. port: the usual one. options: what reads the
    value of each; a ValueError of it must not contain the value.

    Raises AgentError for an invalid URL; the message leaves the password out.
    """
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query, strict_parsing=bool(parts.query))
        if parts.scheme not in ("http", "https"):
            raise BadUrl(f"it begins with {parts.scheme}:" if parts.scheme else "it names no scheme")
        if unknown := set(query) - set(options):
            raise BadUrl(f"unknown option {min(unknown)!r}")
        if not parts.hostname:
            raise BadUrl("it names no host")
        if parts.path.strip("/"):
            raise BadUrl("it has a path")
        return {
            "host": parts.hostname,
            "port": port if parts.port is None else port_number(parts.port),
            "tls": parts.scheme == "https",
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            **{name: options[name](",".join(given)) for name, given in query.items()},
        }
    except ValueError as error:
        raise AgentError(
            f"a URL of {title} in the configuration cannot be read",
            why=str(error) if isinstance(error, BadUrl) else "its host, a port or an option cannot be read",
            remedy=f"write it as {example}; in a password / # ? @ : are %2F %23 %3F %40 %3A",
            exit_code=USAGE,
        ) from None


def port_number(given: str | int) -> int:
    port = int(given)
    if not 0 < port < 65536:
        raise BadUrl("its port is not a port number")
    return port


def names_of(given: str) -> tuple[str, ...]:
    """An option that is a list of names or patterns, separated by commas."""
    return tuple(name for name in given.split(",") if name)


@dataclass(frozen=True)
class HttpServer(ServerSection):
    """A section of a server with an HTTP endpoint."""

    def login(self) -> tuple[str, str] | None:
        """User and password now, None without any. Raises HttpDown if the password cannot be had."""
        try:
            user, password = self.user or self.url.user, self.password.read() or self.url.password
        except ValueError as error:
            raise HttpDown(str(error), "login") from None
        return (user, password) if user or password else None

    def tls(self) -> ssl.SSLContext:
        """Raises OSError if a file cannot be used."""
        return client_context(self.ca_file, self.certificate_file, self.key_file)
