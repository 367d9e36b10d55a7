"""PostgreSQL (13 and later): replication slots and standbys, and job tables by a query of the settings.

All is read in one read-only transaction, which waits for no lock for longer than 0.1 s and ends by itself. A table that
is locked (ACCESS EXCLUSIVE), or a query that takes too long, makes its own queues unknown; the slots go on.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from agent.common.address import addr_text, with_port
from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys, path_setting
from agent.common.fairness import UpperBound
from agent.common.settings import flag, one_of, private_text, setting, text
from agent.errors import USAGE, AgentError
from agent.queues import postgresql_wal as wal
from agent.queues.addresses import Addresses
from agent.queues.asking import Asking
from agent.queues.catalogue import Broker
from agent.queues.postgresql_client import (
    DENIED,
    LOCKED,
    READ_ONLY,
    SYNTAX,
    TIMED_OUT,
    PostgresConnection,
    PostgresDown,
    StatementError,
)
from agent.queues.postgresql_jobs import MAX_QUEUES, PRESETS, JobQueues, UnfitQuery, probe, statement
from agent.queues.queue import Row
from agent.queues.server_section import BadUrl
from agent.queues.timers import ServerTimers, TimedQueue, elsewhere

TIMEOUT_S = 0.8  # of a question
_POLL_S = 3.0  # of a poll with all its questions, or of a new connection: 20 round trips to another continent
#: Of one statement on the server, and of its wait for a lock.
STATEMENT_MS, LOCK_MS = 500, 100
_RETRY_NS = 10_000_000_000  # a refused login is not repeated at each poll: servers log it
#: For docs/limits.md.
BOUNDS = (
    UpperBound("queues", "queues of a PostgreSQL query", MAX_QUEUES, "not watched", "`queue_lag.reason`"),
    UpperBound(
        "queues",
        "replication slots of a PostgreSQL server, and as many standbys",
        wal.MAX_SLOTS,
        "not watched",
        "`queue_lag.reason`",
    ),
)
_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;"
    f" SET LOCAL statement_timeout = {STATEMENT_MS}; SET LOCAL lock_timeout = {LOCK_MS};"
    " SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off"
)
#: Advisory locks that a function of the query took outlive the transaction. A pooler's process id is not the server's:
#: its connection to the server may have locks of other clients.
_END_QUERY = "ROLLBACK; SELECT pg_advisory_unlock_all() WHERE pg_backend_pid() = {}"
_TLS = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True)
class PostgresUrl:
    """``postgresql://[user[:password]@]host[:5432][/database][?sslmode=verify-full]``. host: also the directory of a
    Unix socket, as ``?host=/run/postgresql``.
    """

    host: str
    port: int = 5432
    database: str = "postgres"
    user: str = "tickscope"
    password: str = field(default="", repr=False)
    sslmode: str = ""

    @property
    def server(self) -> str:
        """For display and identity."""
        return f"{with_port(self.host, self.port)}/{self.database}"

    @classmethod
    def parse(cls, url: str) -> PostgresUrl:
        """Raises AgentError for an invalid URL; the message leaves the password out."""
        try:
            parts = urlsplit(url)
            query = parse_qs(parts.query, strict_parsing=bool(parts.query))
            if parts.scheme not in ("postgresql", "postgres"):
                raise BadUrl(f"it begins with {parts.scheme}:" if parts.scheme else "it names no scheme")
            if unknown := set(query) - {"sslmode", "host"}:
                raise BadUrl(f"unknown option {min(unknown)!r}")
            host = query.get("host", [parts.hostname or ""])[-1]
            if not host or "," in host:
                raise BadUrl("it names several hosts: name each server" if host else "it names no host")
            if "host" in query and not host.startswith("/"):
                raise BadUrl("its option host is not the directory of a socket")
            mode = query.get("sslmode", [""])[-1]
            if mode and mode not in _TLS:
                raise BadUrl(f"its sslmode is not one of {', '.join(_TLS)}")
            port = 5432 if parts.port is None else parts.port
            if not port:
                raise BadUrl("its port is not a port number")
            database = unquote(parts.path.strip("/"))
            if "/" in database or "\0" in unquote(url):
                raise BadUrl("its path is not the name of a database")
            return cls(
                host,
                port,
                database or "postgres",
                unquote(parts.username or "") or "tickscope",
                unquote(parts.password or ""),
                mode,
            )
        except ValueError as error:
            raise AgentError(
                "a PostgreSQL URL of the configuration cannot be read",
                why=str(error) if isinstance(error, BadUrl) else "its host, port or an option cannot be read",
                remedy=(
                    "write it as postgresql://tickscope@host:5432/database?sslmode=verify-full; in a password / # ? @ :"
                    " are %2F %23 %3F %40 %3A"
                ),
                exit_code=USAGE,
            ) from None


@dataclass(frozen=True)
class PostgresServer:
    """A server as a section of the settings. Files are read by the broker process, as user tickscope."""

    url: PostgresUrl = setting(
        "", private_text("postgresql://user@host:5432/database?sslmode=verify-full", PostgresUrl.parse), "its address"
    )
    query: str = setting("", text("a SELECT"), "a query for queues in tables (docs/queues-postgresql.md)")
    jobs: str = setting("", one_of("", *sorted(PRESETS)), "a ready-made query for the tables of a job library")
    slots: bool = setting(True, flag(), "watch replication slots and standbys")
    cluster: str = setting(
        "", text("a name"), "name of the cluster, which stays the same at another address; none: host:port/database"
    )
    password: Password = setting(Password(), password_keys("TICKSCOPE_POSTGRESQL_"))
    ca_file: str = path_setting("certificates of the authorities to trust (TLS)")
    certificate_file: str = path_setting("certificate of tickscope (TLS)")
    key_file: str = path_setting("key of that certificate")

    def check(self) -> None:
        """Raises AgentError, without the values: there may be a password among them."""
        wrong = (
            (not self.url, "it has no url"),
            (
                self.url and self.url.password and self.password.is_set,
                "it has a password in its url and another one in the section",
            ),
            (bool(self.key_file) != bool(self.certificate_file), "certificate_file and key_file must be set together"),
            (self.query and self.jobs, "it has both query and jobs"),
            (not (self.query or self.jobs or self.slots), "it has slots: false and no query: nothing is watched"),
        )
        if why := next((why for is_wrong, why in wrong if is_wrong), ""):
            raise AgentError("a PostgreSQL server of the settings cannot be used", why=why, exit_code=USAGE)

    def libpq(self, address: bytes | None) -> dict[str, object]:
        """The settings of libpq. address: of the host, which libpq would look up without a time limit. Raises
        PostgresDown.
        """
        try:
            password = self.password.read() or self.url.password
        except ValueError as error:
            raise PostgresDown(str(error), "login") from None
        mode = self.url.sslmode or ("verify-full" if self.ca_file else "prefer")
        files = {"sslrootcert": self.ca_file, "sslcert": self.certificate_file, "sslkey": self.key_file}
        return {
            "host": self.url.host,
            "port": self.url.port,
            "dbname": self.url.database,
            "user": self.url.user,
            "sslmode": mode,
            "gssencmode": "disable",
            "application_name": "tickscope",
            "client_encoding": "UTF8",
            "tcp_user_timeout": 5000,
            **({"hostaddr": addr_text(address[:16])} if address is not None else {}),
            **({"password": password} if password else {}),
            **{name: path for name, path in files.items() if path},
        }


@dataclass
class _Query:
    """The job query between polls. statement: None until its columns are known. rows: of its last answer."""

    text: str
    statement: str | None = None
    names: tuple[str, ...] = ()
    queues: JobQueues = field(default_factory=JobQueues)
    rows: list[Row] = field(default_factory=list)
    asking: Asking = field(default_factory=Asking)


class PostgresQueues(TimedQueue):
    """One server. ``poll`` returns one row per slot, standby and queue, one row for a server without any, or ``down``
    rows if it does not answer.
    """

    def __init__(self, server: PostgresUrl | PostgresServer, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server if isinstance(server, PostgresServer) else PostgresServer(server)
        url = self._server.url
        self.name = f"postgresql {url.server}"
        self._timeout_s = timeout_s
        self._addresses = Addresses()
        self._connection: PostgresConnection | None = None
        self._readers = wal.WalReaders() if self._server.slots else None
        query = self._server.query or PRESETS.get(self._server.jobs, "")
        self._query = _Query(query.strip().rstrip(";")) if query else None
        self._not_before_ns, self._refusal = 0, PostgresDown("")
        self._timers: ServerTimers | None = None

    def poll(self) -> list[Row]:
        """One transaction. Raises nothing that depends on the server."""
        now_ns, deadline_s = boot_ns(), time.monotonic() + max(_POLL_S, self._timeout_s)
        refused, self._timers = now_ns < self._not_before_ns, None
        peer = self._peer(connects=self._connection is None and not refused)
        try:
            if refused:
                raise self._refusal
            rows = self._poll(peer, now_ns, deadline_s)
        except PostgresDown as error:
            if not refused and error.failure in ("login", "other"):
                self._refusal, self._not_before_ns = error, now_ns + _RETRY_NS
            self.close()
            rows = self._down(error)
        common: dict[str, object] = {"peer": peer}
        if self._readers is not None:
            common["server_role"] = self._readers.role
        return [{**common, **row} for row in rows]

    def timers(self) -> ServerTimers | None:
        return self._timers

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _peer(self, connects: bool) -> bytes | None:
        """connects: whether the poll waits for a look-up, since it needs the address."""
        url = self._server.url
        if url.host.startswith("/"):
            return None
        return self._addresses.peer(url.host, url.port, self._timeout_s if connects else None)

    def _poll(self, peer: bytes | None, now_ns: int, deadline_s: float) -> list[Row]:
        if self._connection is None:
            url = self._server.url
            if peer is None and not url.host.startswith("/"):
                raise PostgresDown(self._addresses.problem(url.host, url.port), "unreachable")
            self._connection = PostgresConnection(self._server.libpq(peer), deadline_s, self._timeout_s)
            deadline_s = time.monotonic() + max(_POLL_S, self._timeout_s)
        ask = self._connection.ask
        rows: list[Row] = []
        if self._readers is not None:
            try:
                ask(_BEGIN, deadline_s)
                slots, standbys = ask(wal.SLOTS, deadline_s).rows, ask(wal.STANDBYS, deadline_s).rows
                before_ns = boot_ns()
                (end,) = ask(wal.END, deadline_s).rows
                rows += self._readers.rows(slots, standbys, end, (before_ns, boot_ns()))
            except StatementError as error:
                rows.append({"reason": f"slots: {error}"})
            finally:
                if self._connection is not None and not self._connection.closed:
                    ask("ROLLBACK", deadline_s)
        if self._query is not None:
            rows += self._jobs(self._query, now_ns, deadline_s)
            if self._connection is not None and not self._query.asking.failed:
                host = "" if peer is None else addr_text(peer[:16])
                self._timers = ServerTimers(self._query.queues.timers, self._connection.version, elsewhere(host))
        return rows or [{"status": "ok"}]

    def _jobs(self, query: _Query, now_ns: int, deadline_s: float) -> list[Row]:
        """The rows of the query; between two questions those of the last one."""
        if query.asking.due(now_ns):
            assert self._connection is not None
            begun_ns = boot_ns()
            problem = self._ask_jobs(self._connection, query, deadline_s)
            if problem:
                query.asking.refused(now_ns)
                query.rows = [{**known, **problem} for known in query.queues.known] or [problem]
            else:
                query.asking.answered(now_ns, boot_ns() - begun_ns)
            return query.rows
        stale = {} if query.asking.failed else query.asking.stale(now_ns)
        return [{**row, **(stale if "lag_messages" in row else {})} for row in query.rows]

    def _ask_jobs(self, connection: PostgresConnection, query: _Query, deadline_s: float) -> dict[str, object]:
        """Asks the query. Returns why it has no answer, as columns; empty if it has one."""
        try:
            connection.ask(_BEGIN, deadline_s)
            if query.statement is None:
                columns = connection.ask(probe(query.text), deadline_s).columns
                query.statement, query.names = statement(query.text, columns), tuple(name for name, _ in columns)
            query.rows = query.queues.rows(query.names, connection.ask(query.statement, deadline_s).rows)
        except UnfitQuery as error:
            query.statement = None
            return {"status": "unknown", "reason": str(error), "failure": "other"}
        except StatementError as error:
            query.statement = None  # a column may have been added, or have another type
            return _refused(error)
        finally:
            if not connection.closed:
                with suppress(StatementError):  # the ROLLBACK is done
                    connection.ask(_END_QUERY.format(connection.process_id), deadline_s)
        return {}

    def _down(self, error: PostgresDown) -> list[Row]:
        """One row for each known queue, so that its series continues; else one for the server."""
        row = {"status": "down", "reason": f"{self.name}: {error}", "failure": error.failure}
        known = [*(self._readers.known if self._readers else ()), *(self._query.queues.known if self._query else ())]
        if self._query is not None:
            self._query.asking.forget()
        return [{**one, **row} for one in known] or [row]


def _refused(error: StatementError) -> dict[str, object]:
    """The columns of queues whose query was refused."""
    if error.state == LOCKED:
        why = f"a table of the query is locked for over {LOCK_MS} ms (ACCESS EXCLUSIVE): see pg_locks"
        return {"status": "unknown", "reason": why, "failure": "other"}
    if error.state == TIMED_OUT:
        why = f"the query took over {STATEMENT_MS} ms: add an index, or count less"
        return {"status": "unknown", "reason": why, "failure": "other"}
    if error.state == DENIED:
        return {"status": "unknown", "reason": f"{error}: GRANT SELECT to this role", "failure": "permission"}
    if error.state == READ_ONLY:
        return {"status": "unknown", "reason": f"the query must only read: {error}", "failure": "other"}
    what = "the query is not one SELECT" if error.state == SYNTAX else "query"
    return {"status": "unknown", "reason": f"{what}: {error}", "failure": "other"}


BROKER = Broker(
    "postgresql",
    "PostgreSQL",
    "replication slots and standbys: bytes and seconds behind; job tables by a query",
    "postgresql://[user:password@]host:5432/database?sslmode=verify-full",
    "job tables: a section with a query, see docs/queues-postgresql.md",
    PostgresUrl.parse,
    PostgresQueues,
    PostgresServer,
)
