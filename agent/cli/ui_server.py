"""Answers the requests of the web page: the page itself, and documents of the store as JSON.

A request for data needs the token of the URL that `tickscope ui` prints. The Host header must be an address or
localhost (no DNS rebinding), and a browser that says that another site asks is refused.
"""

from __future__ import annotations

import gzip
import hmac
import json
import math
import re
import time
from typing import Any
from urllib.parse import parse_qs

from agent.ask.question import Where
from agent.ask.window import Bound
from agent.cli.findings import TABLES_OF as FINDING_TABLES
from agent.cli.findings import latest, with_details
from agent.cli.report_page import DRAWN, asset, document, drawings_of, safe
from agent.cli.report_read import TABLES_OF, ReportSpan, panels, rows_between
from agent.errors import AgentError
from agent.store.sources import opened
from agent.tables import TABLES
from exporters.page_request import RequestHead, Wanted, read
from exporters.page_server import PageServer

_SECOND = 10**9
#: The longest time that a page may ask for.
_MOST_S = 31 * 86_400
_BOOT = re.compile(r"[0-9a-f-]{36}")
_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_ASSETS = ("uplot.js", "page.js", "uplot.css", "page.css", "icon.svg")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    f"Content-Security-Policy: {_POLICY}",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cache-Control: no-store",
    "Connection: close",
)
_SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>tickscope</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/uplot.css">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<noscript>This page needs JavaScript. `tickscope findings` shows the same on a terminal.</noscript>
<script src="/uplot.js"></script>
<script src="/page.js"></script>
</body>
</html>
"""


class UiServer(PageServer):
    """Serves the page of a store until closed. address: a loopback address. token: what a request must bring."""

    name = "ui"

    def __init__(self, address: tuple[str, int], store: str, token: str) -> None:
        self._store, self._token = store, token
        super().__init__(address, "the page", "name another port: tickscope ui --listen 127.0.0.1:0")

    def reply(self, request: bytes) -> tuple[int, bytes]:
        head = read(request, (), "ask by address or as localhost")
        if isinstance(head, Wanted):
            return _answer(head.status, "text/plain", head.text + "\n")
        query = {name: values[-1] for name, values in parse_qs(head.query).items()}
        name = head.path.removeprefix("/")
        if name in _ASSETS:
            return _answer("200 OK", _TYPES[name.rpartition(".")[2]], asset(name))
        if name not in ("", "document", "panels"):
            return _answer("404 Not Found", "text/plain", "no such page\n")
        if not hmac.compare_digest(query.get("token", "").encode(), self._token.encode()):
            return _answer(
                "403 Forbidden",
                "text/plain",
                "wrong token: open the URL that `tickscope ui` prints\n",
            )
        if not name:
            return _answer("200 OK", "text/html", _SHELL)
        if _foreign(head):
            return _answer("403 Forbidden", "text/plain", "another site asked for it\n")
        try:
            made = self._document(query) if name == "document" else self._panels(query)
        except AgentError as error:
            return _answer("409 Conflict", "application/json", json.dumps({"error": str(error)}))
        except ValueError as error:
            return _answer("400 Bad Request", "text/plain", f"{error}\n")
        return _answer("200 OK", "application/json", json.dumps(made, separators=(",", ":")), head)

    def _document(self, query: dict[str, str]) -> dict[str, Any]:
        span = self._span(query)
        with self._opened(span) as source:
            made = document(source, span, query.get("finding", ""), query.get("words", ""))
            return {**made, "live": source.written_since_ns is not None}

    def _panels(self, query: dict[str, str]) -> dict[str, Any]:
        """Panels with these ``titles``, and those of the evidence of these ``findings``, wherever these lie."""
        span = self._span(query)
        titles, ids = query.get("titles", "").split("|"), query.get("findings", "").split(",")
        rows = []
        if ids != [""]:
            with opened(self._store, FINDING_TABLES) as source:
                rows = with_details(source, latest(source, Where("finding_id", "in", tuple(ids[:DRAWN]))))
        tables = {one["table"] for row in rows for one in row["evidence"] if one.get("table") in TABLES}
        with opened(self._store, [*TABLES_OF, *tables], *_bounds(span)) as source:
            found = panels(source, span, (), query.get("words", ""), titles)
            evidence = {row["finding_id"]: drawings_of(source, span, row) for row in rows}
        made: dict[str, Any] = {"boot_id": span.boot_id, "from_boot_s": span.from_ns / _SECOND}
        return {**made, **safe({"panels": found, "evidence": evidence})}

    def _opened(self, span: ReportSpan) -> Any:
        return opened(self._store, [*TABLES, *FINDING_TABLES], *_bounds(span))

    def _span(self, query: dict[str, str]) -> ReportSpan:
        """``boot``, ``from`` and ``to`` (CLOCK_BOOTTIME s), or the newest ``length`` seconds. Raises ValueError."""
        if "boot" in query:
            first, last = _seconds(query, "from"), _seconds(query, "to")
            if not _BOOT.fullmatch(query["boot"]):
                raise ValueError("boot must be a boot id")
            if not 0 < last - first <= _MOST_S or first < 0:
                raise ValueError("from must be before to")
            return ReportSpan(query["boot"], int(first * _SECOND), int(last * _SECOND))
        length = int(min(max(_seconds(query, "length"), 1.0), _MOST_S) * _SECOND)
        with opened(self._store, TABLES_OF) as source:
            if not source.boots:
                raise AgentError("the store has no rows yet")
            boot = source.boots[-1]
            last_ns = (source.last_ns(boot) or 0) + 1
            if source.written_since_ns is not None:
                last_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            begin_ns = max(0, last_ns - length)
            found = rows_between(source, boot, f"t_ns >= {begin_ns} AND t_ns < {last_ns}", ("clock_offset",))
        return ReportSpan(boot, found[0] if found else begin_ns, last_ns)


def _bounds(span: ReportSpan) -> tuple[Bound, Bound]:
    return Bound(span.boot_id, span.from_ns, None), Bound(span.boot_id, span.to_ns, None)


def _seconds(query: dict[str, str], name: str) -> float:
    value = float(query.get(name, "nan"))
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a number of seconds")
    return value


def _foreign(head: RequestHead) -> bool:
    """Whether a page of another origin asks, as browsers say."""
    origin, host = head.headers.get("origin", []), head.headers.get("host", [""])[0]
    site = head.headers.get("sec-fetch-site", ["same-origin"])[0]
    return site not in ("same-origin", "none") or any(one != f"http://{host}" for one in origin)


def _answer(status: str, kind: str, text: str, head: RequestHead | None = None) -> tuple[int, bytes]:
    """head: of the request, if the answer may be compressed."""
    body, more = text.encode(), list(_HEADERS)
    if head is not None and "gzip" in ",".join(head.headers.get("accept-encoding", [])):
        body = gzip.compress(body, 4, mtime=0)
        more.append("Content-Encoding: gzip")
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}; charset=utf-8",
        f"Content-Length: {len(body)}",
        *more,
        "",
        "",
    ]
    return int(status[:3]), "\r\n".join(lines).encode() + body
