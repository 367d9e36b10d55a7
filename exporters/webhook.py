"""JSON posted to a URL that may be a secret: no message has more of it than scheme and host."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from agent.common.clocks import boot_ns
from agent.common.printable import printable
from exporters.send import Outcome, failed, retry_after

if TYPE_CHECKING:
    from exporters.transport import Answer, Transport

TIMEOUT_S = 10.0
_EXPLANATION = 120
#: What an error says, as a regular expression -> what to do. The first one that is found.
_REMEDIES = (
    ("^its thread stopped", "restart tickscope, and report this error"),
    ("^url_(file|variable|credential)", "see {section} in the settings"),
    ("^HTTP 3", "redirects are not followed: set the URL that it refers to"),
    ("^HTTP (401|403|404|410)", "check the URL of {section}: its path, its login, and whether it was revoked"),
    ("^HTTP (429|5)", "the agent repeats the request; if it lasts, see the state of {server}"),
    ("^HTTP", "see the log of {server}"),
    ("(?i)refused|not known|resolution|unreachable", "is {server} running and reachable from this host?"),
    ("TimeoutError|timed out", "is {server} reachable from this host? A proxy for HTTP is not supported"),
    ("expired|not yet valid", "renew the certificate of {server}; or is this node's clock wrong? tickscope clock"),
    ("mismatch|doesn't match|not valid for", "set the URL of {section} to a name in the certificate"),
    ("WRONG_VERSION_NUMBER", "the server speaks no TLS at this port: check scheme and port of the URL of {section}"),
    ("CERTIFICATE|SSL", "set {section}.ca_file to the server's authority"),
    ("web page|`ok`|BadStatusLine", "check the URL of {section}"),
)


class Webhook:
    """A ``Sender``. read_url: the URL now; raises ValueError, which says what to do. understood: what is wrong with an
    answer of status 2xx; empty if nothing is.

    server_time: (CLOCK_BOOTTIME ns, Unix ns) of the last answer's Date, by the server's clock; None without one.
    """

    def __init__(self, read_url: Callable[[], str], understood: Callable[[Answer], str], ca_file: str = "") -> None:
        self._read_url, self._understood, self._ca_file = read_url, understood, ca_file
        self._url = ""
        self._transport: Transport | None = None
        self._headers: dict[str, str] = {}
        self.server_time: tuple[int, int] | None = None

    @property
    def shown(self) -> str:
        """Scheme and host of the URL; empty before it was read."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if self._url else ""

    def send(self, data: bytes) -> Outcome:
        try:
            transport = self._opened(self._read_url())
        except ValueError as error:
            return Outcome("retry", message=str(error)[:200])
        from http.client import HTTPException  # after Transport, which imports it without TLS

        try:
            answer = transport.post(data, self._headers, TIMEOUT_S)
        except (OSError, HTTPException, ValueError) as error:
            return failed(error)
        self._note_time(answer.headers.get("date", ""))
        if 200 <= answer.status < 300:
            wrong = self._understood(answer)
            return Outcome("refused", message=wrong) if wrong else Outcome("sent")
        message = f"HTTP {answer.status} {printable(answer.reason)}".strip()
        if answer.status == 429 or answer.status >= 500:
            return Outcome("retry", message=message, retry_after_s=retry_after(answer.headers.get("retry-after", "")))
        return Outcome("too_large" if answer.status == 413 else "refused", message=message + self._explanation(answer))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _opened(self, url: str) -> Transport:
        if self._transport is None or url != self._url:
            from exporters.transport import Transport

            self.close()
            self._url, parts = url, urlsplit(url)
            self._transport = Transport(url, certificate=self._ca_file)
            self._headers = {"content-type": "application/json", "user-agent": "tickscope"}
            if parts.username is not None:
                login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                self._headers["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        return self._transport

    def _explanation(self, answer: Answer) -> str:
        """The beginning of a short answer, unless the URL's path is repeated in it."""
        text = answer.body.decode(errors="replace").strip()
        path = urlsplit(self._url).path.strip("/")
        secret = (path and path in text) or answer.headers.get("content-type", "").startswith("text/html")
        return "" if secret or not text else f": {printable(text)[:_EXPLANATION]}"

    def _note_time(self, date: str) -> None:
        from datetime import UTC
        from email.utils import parsedate_to_datetime

        try:
            at = parsedate_to_datetime(date)
        except (ValueError, OverflowError):
            self.server_time = None
            return
        # The header has whole seconds: half a second later is right on average.
        unix_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() + 0.5
        self.server_time = boot_ns(), int(unix_s * 1e9)


def is_page(answer: Answer) -> bool:
    """Whether the answer is a web page: that of a proxy, or of another server."""
    return answer.body.lstrip()[:1] == b"<"


def remedy(error: str, server: str, section: str) -> str:
    """What to do about an error of a request. section: of the settings."""
    for part, words in _REMEDIES:
        if re.search(part, error):
            return words.format(server=server, section=section)
    return f"see the log of {server}"
