"""Queues of any program with an HTTP endpoint that has Prometheus' text format or JSON (expvar): in-process queues,
pools, goroutines, and servers with an exporter. A mapping says which figures are whose (agent/queues/mapping.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from agent.common.address import peer_bytes, with_port
from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys
from agent.common.fairness import UpperBound
from agent.common.http_get import HttpClient, HttpDown
from agent.common.settings import Place, ValueType, private_text, setting, text
from agent.common.settings import read as read_section
from agent.errors import USAGE, AgentError
from agent.queues.asking import Asking
from agent.queues.catalogue import Broker
from agent.queues.http_server import HttpServer
from agent.queues.mapping import MAX_QUEUES, MAX_SAMPLES, MappedQueues, read
from agent.queues.queue import Row

TIMEOUT_S = 0.8
MAX_BODY_BYTES = 4 << 20
_RETRY_NS = 10_000_000_000  # a refused login is not repeated at each poll
_SYSTEM = "http"
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues", "queues of a metrics endpoint", MAX_QUEUES, "not watched", "`queue_lag.reason`", setting="labels"
    ),
    UpperBound("queues", "samples of one metric of an endpoint", MAX_SAMPLES, "not read", "`queue_lag.reason`"),
    UpperBound(
        "queues",
        "answer of a metrics endpoint",
        MAX_BODY_BYTES >> 20,
        "its queues have `status` down",
        "`queue_lag.reason`",
        "MiB",
    ),
)


@dataclass(frozen=True)
class EndpointUrl:
    """``http[s]://[user:password@]host[:port]/path[?query]``. mapping: of the text's fragment, if it has one."""

    host: str
    port: int
    path: str
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    mapping: tuple[MappedQueues, ...] = ()

    @classmethod
    def parse(cls, url: str) -> EndpointUrl:
        """Raises AgentError for an invalid URL; the message leaves the password out."""
        try:
            parts = urlsplit(url)
            port = parts.port
            if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
                raise ValueError
            if not url.isascii() or any(letter <= " " for letter in url.partition("#")[0]):
                raise ValueError
        except ValueError:
            raise AgentError(
                "a URL of queues_from cannot be read",
                why="its scheme, host or port cannot be read",
                remedy="write it as http://host:8080/metrics#name={queue}&length=METRIC",
                exit_code=USAGE,
            ) from None
        mapping: tuple[MappedQueues, ...] = ()
        if parts.fragment:
            given = {name: values[-1] for name, values in parse_qs(parts.fragment).items()}
            mapping = (read_section(MappedQueues, given),)
        return cls(
            parts.hostname,
            port or (443 if parts.scheme == "https" else 80),
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            parts.scheme == "https",
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            mapping,
        )


class _Totals(NamedTuple):
    """Of a queue at one poll. missing: by how much ``done`` fell since it was first read."""

    added: int | None
    done: int | None
    missing: int = 0


def _whole(given: object) -> int | None:
    return given if isinstance(given, int) else None


def _queues(given: Any, place: Place) -> tuple[MappedQueues, ...]:
    listed = [given] if isinstance(given, Mapping) else given
    if not isinstance(listed, (list, tuple)) or not 0 < len(listed) <= 64:
        raise place.wrong(given, "must be a list of 1 to 64 sections, each with name and length")
    return tuple(read_section(MappedQueues, one, place.below(at)) for at, one in enumerate(listed))


@dataclass(frozen=True)
class MetricsEndpoint(HttpServer):
    """An endpoint as a section of the settings."""

    TITLE = "queues_from"

    url: EndpointUrl = setting("", private_text("http://host:8080/metrics", EndpointUrl.parse), "its address")
    password: Password = setting(Password(), password_keys("TICKSCOPE_QUEUES_FROM_"))
    system: str = setting(_SYSTEM, text("a name"), "name of the messaging system, for `queue_lag.system`")
    queues: tuple[MappedQueues, ...] = setting(
        (),
        ValueType(_queues, "a list of sections, see docs/queues-mapping.md"),
        "queues, and the metrics that describe them",
    )

    def mistakes(self) -> tuple[tuple[object, str], ...]:
        paths = {bool(source.path) for one in self.mapped for source in one.sources().values()}
        return (
            *super().mistakes(),
            (self.url and not self.mapped, "it has no queues: name the metric with the length"),
            (len(paths) > 1, "its queues must all have metrics, or all have paths in JSON"),
            (not self.system, "its system is empty"),
        )

    @property
    def mapped(self) -> tuple[MappedQueues, ...]:
        return self.queues or (self.url.mapping if self.url else ())


def _line(given: str) -> MetricsEndpoint:
    """An endpoint as one line. Raises AgentError."""
    endpoint = MetricsEndpoint(EndpointUrl.parse(given))
    endpoint.check()
    return endpoint


class EndpointQueues:
    """One endpoint. ``poll`` returns one row per queue and per problem, or ``down`` rows if it does not answer."""

    def __init__(self, endpoint: MetricsEndpoint, timeout_s: float = TIMEOUT_S) -> None:
        self._endpoint = endpoint
        url = self._endpoint.url
        self.name = f"{self._endpoint.system} {with_port(url.host, url.port)}"
        self._timeout_s = timeout_s
        self._client = HttpClient(url.host, url.port, self._endpoint.tls if url.tls else None)
        self._asking = Asking()
        self._rows: list[Row] = []
        self._totals: dict[tuple[object, ...], _Totals] = {}
        self._not_before_ns, self._refusal = 0, HttpDown("")

    def poll(self) -> list[Row]:
        """One request. Raises nothing, whatever the endpoint answers."""
        now_ns = boot_ns()
        stale: dict[str, object] = {}
        try:
            if now_ns < self._not_before_ns:
                raise self._refusal
            if self._asking.due(now_ns):
                self._ask(now_ns)
            else:
                stale = self._asking.stale(now_ns)
        except HttpDown as error:
            if error.failure == "login" and now_ns >= self._not_before_ns:
                self._refusal, self._not_before_ns = error, now_ns + _RETRY_NS
            self._down(str(error), error.failure)
        except (ValueError, RecursionError) as error:
            self._client.close()
            about = "is no JSON" if self._endpoint.mapped[0].sources()["length"].path else "is not Prometheus' format"
            self._down(f"its answer {about}: {str(error)[:60]}")
        common: dict[str, object] = {}
        if self._client.peer is not None:
            common["peer"] = peer_bytes(*self._client.peer)
        return [{**common, **row, **(stale if "lag_messages" in row else {})} for row in self._rows]

    def close(self) -> None:
        self._client.close()

    def _ask(self, now_ns: int) -> None:
        begun_ns, deadline_s = boot_ns(), time.monotonic() + self._timeout_s
        answer = self._client.get(
            self._endpoint.url.path, deadline_s, login=self._endpoint.login(), most_bytes=MAX_BODY_BYTES
        )
        if self._client.announced or answer.endswith(b"# EOF"):
            answer += b"\n"  # many programs leave the last one out
        rows = read(self._endpoint.mapped, answer, time.time()) or [{"status": "ok", "reason": "no queues"}]
        before, self._totals = self._totals, {}
        self._rows = [self._continued(row, before) for row in rows]
        self._asking.answered(now_ns, boot_ns() - begun_ns)

    def _continued(self, row: Row, before: Mapping[tuple[object, ...], _Totals]) -> Row:
        """A counter that begins anew, or one of several that are added up, is no step back of the queue's consumers."""
        key = row.get("destination"), row.get("consumer_group")
        added, done = _whole(row.get("added")), _whole(row.get("acked"))
        was = before.get(key, _Totals(added, done))
        missing = was.missing
        if added is not None and was.added is not None and added < was.added:
            missing = 0  # everything begins anew
        elif done is not None and was.done is not None and done < was.done:
            missing += was.done - done
        self._totals[key] = _Totals(added, done, missing)
        return row if done is None else {**row, "acked": done + missing}

    def _down(self, reason: str, failure: str = "other") -> None:
        """One row for each known queue, so that its series continues; else one for the endpoint."""
        row: Row = {"status": "down", "reason": f"{self.name}: {reason}", "failure": failure}
        known = [
            {name: it for name, it in one.items() if name in ("destination", "consumer_group")}
            for one in self._rows
            if "destination" in one
        ]
        self._rows = [{**one, **row} for one in known] or [row]


BROKER = Broker(
    "queues_from",
    "Any program with metrics",
    "queues by a mapping: length, messages being processed, consumers, age, capacity, rates",
    "http://host:8080/metrics#name={queue}&length=METRIC",
    "several queues, JSON (expvar), passwords: a section, see docs/queues-mapping.md",
    _line,
    EndpointQueues,
    MetricsEndpoint,
    lambda server: server.system,
)
