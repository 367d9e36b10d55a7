"""One connection to a PostgreSQL server, through libpq (psycopg2), with a deadline for each question.

psycopg2's asynchronous mode is used because libpq's own time-outs are whole seconds, and none ends a read from a server
that is stopped. psycopg2 is imported at the first connection (4.9 MB).
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from agent.common.tls import IN_SECTION, unverified

#: SQLSTATE of errors about a statement, by what they mean.
LOCKED, TIMED_OUT, DENIED, READ_ONLY, SYNTAX = "55P03", "57014", "42501", "25006", "42601"
#: Classes of errors after which the connection is of no use: the server ends it, or shuts down.
_ENDING = ("08", "57P")
#: Of a failed connection, the failure of ``queue_lag`` by a part of libpq's text.
_FAILURES = (
    ("certificate", "login"),  # before the errors of files: one of them is not there
    ("Connection refused", "refused"),
    ("too many", "refused"),
    ("remaining connection slots", "refused"),
    ("starting up", "refused"),
    ("shutting down", "refused"),
    ("no more connections allowed", "refused"),
    ("terminating connection", "closed"),
    ("not yet accepting", "refused"),
    ("timeout expired", "no_answer"),
    ("timed out", "no_answer"),
    ("No route", "unreachable"),
    ("unreachable", "unreachable"),
    ("No such file", "unreachable"),
    ("closed the connection", "closed"),
    ("closed unexpectedly", "closed"),  # over TLS
    ("EOF detected", "closed"),
    ("reset by peer", "closed"),
    ("SSL", "login"),
    ("password", "login"),
    ("authentication", "login"),
    ("pg_hba.conf", "login"),
    ("does not exist", "login"),
    ("not permitted to log in", "login"),
    ("permission denied", "login"),
)
#: Of libpq's texts, parts of those that say why a server's certificate was refused.
_UNVERIFIED = ("root certificate file", "does not match host name")
#: What libpq puts before the cause.
_AROUND = re.compile(
    r"^(connection to server .*? failed: )|^((FATAL|ERROR): +)|^(private key file .*?: )", re.MULTILINE
)


class PostgresDown(Exception):
    """No usable answer. The text is the reason, ``failure`` its kind (``queue_lag.failure``)."""

    def __init__(self, reason: str, failure: str = "other") -> None:
        super().__init__(reason)
        self.failure = failure


class StatementError(Exception):
    """The server refused a statement; the connection can be used. state: SQLSTATE."""

    def __init__(self, reason: str, state: str) -> None:
        super().__init__(reason)
        self.state = state


class QueryAnswer(NamedTuple):
    """Rows of a statement, and name and type (OID) of each column."""

    rows: list[tuple[Any, ...]]
    columns: list[tuple[str, int]]


class PostgresConnection:
    """A connection. settings: of libpq. deadline_s: time.monotonic. timeout_s: of a question. Raises PostgresDown."""

    def __init__(self, settings: Mapping[str, object], deadline_s: float, timeout_s: float) -> None:
        import psycopg2

        self._errors = psycopg2
        self._timeout_s = timeout_s
        self._link: Any = None
        try:
            self._link = psycopg2.connect("", async_=1, **settings)
            self._wait(deadline_s)
        except psycopg2.Error as error:
            self.close()
            raise _down(error) from None
        except BaseException:
            self.close()
            raise

    def ask(self, statement: str, deadline_s: float) -> QueryAnswer:
        """Raises StatementError, and PostgresDown if the connection is of no use any more. deadline_s: of the poll."""
        try:
            with self._link.cursor() as cursor:
                cursor.execute(statement)
                self._wait(min(deadline_s, time.monotonic() + self._timeout_s))
                if cursor.description is None:
                    return QueryAnswer([], [])
                return QueryAnswer(
                    cursor.fetchall(), [(column.name, column.type_code) for column in cursor.description]
                )
        except self._errors.Error as error:
            state = error.pgcode or ""
            if self._link.closed or not state or state.startswith(_ENDING):
                self.close()
                raise _down(error) from None
            raise StatementError(error.diag.message_primary or text_of(error), state) from None
        except UnicodeError:
            raise StatementError("a text in its answer is not UTF-8", "22021") from None

    @property
    def version(self) -> str:
        """The server's, as 15.18; empty if it did not report it."""
        return (self._link.get_parameter_status("server_version") or "").partition(" ")[0]

    @property
    def process_id(self) -> int:
        """Of the server's process for this connection; a pooler has its own numbers."""
        return int(self._link.info.backend_pid)

    @property
    def closed(self) -> bool:
        return bool(self._link.closed)

    def close(self) -> None:
        """The server ends what it still does for this connection when its statement_timeout is over."""
        if self._link is not None:
            self._link.close()

    def _wait(self, deadline_s: float) -> None:
        """Until libpq has what it waits for."""
        while (state := self._link.poll()) != self._errors.extensions.POLL_OK:
            left_s = deadline_s - time.monotonic()
            fd = self._link.fileno()
            reads = state == self._errors.extensions.POLL_READ
            waits = select.poll()
            waits.register(fd, select.POLLIN if reads else select.POLLOUT)
            if left_s <= 0 or not waits.poll(left_s * 1000):
                self.close()
                raise PostgresDown("no answer in time", "no_answer")


def text_of(error: BaseException) -> str:
    """What libpq says, in one line, without the address. If it tried TLS and then no TLS, the first attempt."""
    return next(iter(_AROUND.sub("", str(error)).strip().splitlines()), "") or type(error).__name__


def _down(error: BaseException) -> PostgresDown:
    text = text_of(error)
    failure = next((kind for part, kind in _FAILURES if part in text), "other")
    if "certificate verify failed" in text:
        text = unverified()
    elif any(part in text for part in _UNVERIFIED):
        text = unverified(text)
    elif "requires a valid client certificate" in text:  # pg_hba.conf has clientcert, or the method cert
        text = f"{text}: set {IN_SECTION.certificate}, `key_file`"
    return PostgresDown(text, failure)
