"""Parses requests for pages: request line, host, and of the metrics page the format. Pure: bytes in, the head of an
answer out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

_OPENMETRICS, _TEXT = "application/openmetrics-text", "text/plain"
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


@dataclass(frozen=True)
class Wanted:
    """How to answer. status: 200 OK, or an error, with its reason in ``text``."""

    status: str = "200 OK"
    text: str = ""
    head_only: bool = False
    openmetrics: bool = False
    gzip: bool = False


@dataclass(frozen=True)
class RequestHead:
    """A request that may be answered. query: as in the URL. headers: by lower-case name, in order."""

    method: str
    path: str
    query: str
    headers: dict[str, list[str]]


def read(request: bytes, hosts: Collection[str], remedy: str) -> RequestHead | Wanted:
    """The complete request head, or why it is refused. A request that is too large has only its beginning.

    hosts: permitted names, in lower case. remedy: for one that came under another name.
    """
    head, end, _ = request.partition(b"\r\n\r\n")
    if not end:
        return Wanted("431 Request Header Fields Too Large", "request too large")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), []).append(value.strip())
    if method not in ("GET", "HEAD"):
        return Wanted("405 Method Not Allowed", "only GET")
    host = headers.get("host", [])
    if len(host) > 1 or (not host and version != "HTTP/1.0"):
        return Wanted("400 Bad Request", "one Host header, please")
    if host and not known_host(host[0], hosts):
        return Wanted(
            "421 Misdirected Request",
            "this page is not served under that name, so that no web site can read it through your browser; " + remedy,
        )
    path, _, query = target.partition("?")
    return RequestHead(method, path, query, headers)


def parse(request: bytes, hosts: Collection[str]) -> Wanted:
    """How to answer a request for the metrics page; see ``read``."""
    head = read(request, hosts, "ask by address or as localhost, or name it in the settings: metrics: {hosts: [NAME]}")
    if isinstance(head, Wanted):
        return head
    if head.path != "/metrics":
        return Wanted("404 Not Found", "see /metrics")
    accept, coding = (",".join(head.headers.get(name, [])) for name in ("accept", "accept-encoding"))
    return Wanted("200 OK", "", head.method == "HEAD", _wants_openmetrics(accept), (_weight(coding, "gzip") or 0) > 0)


def known_host(given: str, hosts: Collection[str]) -> bool:
    """Whether a Host header names this page: a loopback name, a configured name, or any address. (Behind a published
    port or NAT, the address differs from the socket's.)

    This blocks DNS rebinding: a web site that reads the page through a browser needs a name that resolves to our
    address.
    """
    host = given.lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name in _LOOPBACK_NAMES or name in hosts or host in hosts or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _wants_openmetrics(accept: str) -> bool:
    """Only if it is named in a supported version, and plain text is not preferred."""
    named = _weight(accept, _OPENMETRICS, ("", "1.0.0"))
    return named is not None and named > 0 and named >= (_weight(accept, _TEXT, ("", "0.0.4")) or 0)


def _weight(header: str, wanted: str, versions: tuple[str, ...] = ("",)) -> float | None:
    """The largest q of an item in an Accept header, None if it is not named."""
    best: float | None = None
    for item in header.split(","):
        name, *parts = (part.strip() for part in item.split(";"))
        given = {k.strip().lower(): v.strip().strip('"') for k, _, v in (part.partition("=") for part in parts)}
        if name.lower() != wanted or given.get("version", "") not in versions:
            continue
        try:
            q = float(given.get("q", "1"))
        except ValueError:
            q = 0.0
        best = max(best or 0.0, q)
    return best
