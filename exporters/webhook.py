"""JSON posted to a URL that may be a secret: no message has more of it than scheme and host."""

from __future__ import annotations

import base64
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
    if "_file" in error or "_variable" in error or "_credential" in error:
        return f"see {section} in the settings"
    if "refused" in error.lower() or "not known" in error or "resolution" in error or "unreachable" in error:
        return f"is {server} running and reachable from this host?"
    if error.startswith("HTTP 3"):
        return "redirects are not followed: set the URL that it refers to"
    if error.startswith(("HTTP 401", "HTTP 403")):
        return f"check the login in the URL of {section}"
    if "CERTIFICATE" in error.upper() or "SSL" in error:
        return f"set {section}.ca_file to the server's authority"
    if error.startswith(("HTTP 404", "HTTP 410")) or "web page" in error or "`ok`" in error or "BadStatusLine" in error:
        return f"check the URL of {section}"
    return f"see the log of {server}"
