"""What an etcd member answers: the JSON gateway (``/v3/...``) and ``/metrics``. Parsers are pure and strict: a document
of another form is refused as a whole.

The gateway's JSON is that of protobuf: numbers are texts, keys and values are base64, and what is 0, false or empty is
left out.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from _blake2 import blake2b  # hashlib would load OpenSSL
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent.common.address import peer_bytes
from agent.common.http_get import MAX_BODY_BYTES, HttpClient, HttpDown
from agent.queues.http_server import HttpServer, HttpUrl
from agent.queues.prometheus_text import NotPrometheus, metric_samples, whole_number

_MOST = (1 << 63) - 1
_MOST_ID = (1 << 64) - 1
_MOST_TEXT = 256
_MOST_URLS = 8  # of a member
_MOST_S = 9_000_000_000  # etcd's longest time to live
#: Metrics -> their names here. Those of etcd_debugging are not promised to stay.
_METRICS = {
    b"etcd_server_proposals_pending": "proposals",
    b"etcd_server_proposals_committed_total": "committed",
    b"etcd_server_proposals_failed_total": "failed",
    b"etcd_server_quota_backend_bytes": "quota_bytes",
    b"etcd_debugging_mvcc_pending_events_total": "events",
    b"etcd_debugging_mvcc_events_total": "sent",
    b"etcd_debugging_mvcc_slow_watcher_total": "slow_watchers",
    b"etcd_debugging_mvcc_watcher_total": "watchers",
    b"etcd_debugging_mvcc_compact_revision": "compacted",
    b"process_resident_memory_bytes": "memory_bytes",
}
_LINES = re.compile(b"^(?:" + b"|".join(_METRICS) + rb") .*\n", re.MULTILINE)
_NO_USER = "user name is empty"
_NO_APPLIED = re.compile(r"3\.[0-3]\.|$")  #: versions without raftAppliedIndex
_ALARM = re.compile(r"\balarm:\s?([A-Z]+)")


class NotEtcd(ValueError):
    """The document is not of the form."""


@dataclass(frozen=True)
class MemberStatus:
    """``/v3/maintenance/status``. leader: a member's id, 0 without one. term: number of the election. committed,
    applied: entries of the raft log; None if they are not reported, as by etcd before 3.4. alarms: NOSPACE, CORRUPT.
    """

    cluster_id: int
    member_id: int
    leader: int
    term: int
    revision: int
    committed: int | None
    applied: int | None
    db_bytes: int
    version: str
    alarms: tuple[str, ...]


class KeyState(NamedTuple):
    """mod: the revision at which the key was last changed. value: a hash of its value."""

    mod: int
    value: bytes


class LeaseState(NamedTuple):
    """``/v3/lease/timetolive``. left_s: its time to live in whole seconds, rounded towards 0. key: one of its keys;
    empty: none, or they were not asked for.
    """

    left_s: int
    key: bytes


@dataclass(frozen=True)
class KeyPage:
    """``/v3/kv/range``. revision: of the whole store, when it was read. count: keys of the range. more: whether keys
    follow the last one here. cluster_id: of the member that answered.
    """

    revision: int
    count: int
    more: bool
    keys: dict[bytes, KeyState]
    cluster_id: int = 0


def read_status(answer: bytes) -> MemberStatus:
    """Raises NotEtcd."""
    given = _document(answer)
    header = _mapping(given.get("header"))
    errors = _list(given, "errors")
    committed, applied = (number(given, key) if key in given else None for key in ("raftIndex", "raftAppliedIndex"))
    version = _text(given, "version")
    if applied is None and committed is not None and not _NO_APPLIED.match(version):
        applied = 0
    return MemberStatus(
        number(header, "cluster_id", _MOST_ID),
        number(header, "member_id", _MOST_ID),
        number(given, "leader", _MOST_ID),
        number(given, "raftTerm"),
        number(header, "revision"),
        committed,
        applied,
        number(given, "dbSize"),
        version,
        tuple(dict.fromkeys(name for one in errors if isinstance(one, str) for name in _ALARM.findall(one)))[:4],
    )


def read_members(answer: bytes) -> dict[int | str, str]:
    """Names by id, and by ``host:port`` for clients; a member that has not started yet has an empty one. Raises
    NotEtcd.
    """
    found: dict[int | str, str] = {}
    for one in map(_mapping, _list(_document(answer), "members")):
        name, urls = _text(one, "name"), _list(one, "clientURLs")
        if not all(isinstance(url, str) for url in urls):
            raise NotEtcd("clientURLs is no list")
        found |= {number(one, "ID", _MOST_ID): name} | {url.rpartition("/")[2]: name for url in urls[:_MOST_URLS]}
    return found


def read_leases(answer: bytes) -> list[int]:
    """Ids, those that end first before the others. Raises NotEtcd."""
    return [number(_mapping(one), "ID") for one in _list(_document(answer), "leases")]


def read_lease(answer: bytes) -> LeaseState | None:
    """None if there is no such lease. Raises NotEtcd."""
    given = _document(answer)
    keys = _list(given, "keys")
    late = str(given.get("TTL", "")).startswith("-")
    left_s = number({"TTL": str(given["TTL"])[1:]} if late else given, "TTL", _MOST_S)
    granted_s = number(given, "grantedTTL", _MOST_S)
    if late and not granted_s:
        return None
    return LeaseState(-left_s if late else left_s, _bytes({"key": keys[0]}, "key") if keys else b"")


def read_page(answer: bytes) -> KeyPage:
    """Raises NotEtcd."""
    given = _document(answer)
    keys = {}
    for one in map(_mapping, _list(given, "kvs")):
        value = blake2b(_bytes(one, "value"), digest_size=8).digest()
        keys[_bytes(one, "key")] = KeyState(number(one, "mod_revision"), value)
    header = _mapping(given.get("header"))
    revision, cluster_id = number(header, "revision"), number(header, "cluster_id", _MOST_ID)
    return KeyPage(revision, number(given, "count"), given.get("more", False) is True, keys, cluster_id)


def read_metrics(answer: bytes) -> dict[str, int]:
    """Those that are there, by their names here. Raises NotPrometheus."""
    if not answer.endswith(b"\n"):
        raise NotPrometheus("it is cut off")
    text = b"".join(_LINES.findall(answer))  # 99 of 100 lines are of histograms
    found = {_METRICS[one.name]: whole_number(one.value) for one in metric_samples(text, _METRICS)}
    return {name: value for name, value in found.items() if value is not None}


def number(given: dict[str, Any], key: str, most: int = _MOST) -> int:
    """0 if it is left out. Raises NotEtcd."""
    found = given.get(key, 0)
    if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) <= 20:
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise NotEtcd(f"{key} is no count")
    return found


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix; a zero byte for all keys."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def _document(answer: bytes) -> dict[str, Any]:
    try:
        return _mapping(json.loads(answer))
    except (ValueError, RecursionError):
        raise NotEtcd("it is no JSON of etcd's gateway") from None


def _mapping(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise NotEtcd("no object")
    return given


def _list(given: dict[str, Any], key: str) -> list[Any]:
    found = given.get(key, [])
    if not isinstance(found, list):
        raise NotEtcd(f"{key} is no list")
    return found


def _text(given: dict[str, Any], key: str) -> str:
    found = given.get(key, "")
    if not isinstance(found, str) or len(found) > _MOST_TEXT:
        raise NotEtcd(f"{key} is no text")
    return found


def _bytes(given: dict[str, Any], key: str) -> bytes:
    found = given.get(key, "")
    if not isinstance(found, str):
        raise NotEtcd(f"{key} is no text")
    try:
        return base64.b64decode(found, validate=True)
    except (binascii.Error, ValueError):
        raise NotEtcd(f"{key} is not base64") from None


class EtcdMember:
    """One connection to one member. Methods raise HttpDown, NotEtcd or NotPrometheus."""

    def __init__(self, url: HttpUrl, server: HttpServer) -> None:
        self.name = url.server
        self._client: HttpClient = url.client(server)
        self._server = server
        self._token, self._asked = "", False

    @property
    def peer(self) -> bytes | None:
        return None if self._client.peer is None else peer_bytes(*self._client.peer)

    @property
    def host(self) -> str:
        """Its IP address; empty before it is connected."""
        return "" if self._client.peer is None else self._client.peer[0]

    @property
    def logs_in(self) -> bool:
        """Whether the next request begins with a login, for which etcd computes for a tenth of a second."""
        return self._asked and not self._token

    def status(self, deadline_s: float) -> MemberStatus:
        return read_status(self._ask("maintenance/status", {}, deadline_s))

    def members(self, deadline_s: float) -> dict[int | str, str]:
        return read_members(self._ask("cluster/member/list", {}, deadline_s))

    def leases(self, deadline_s: float, most_bytes: int) -> list[int]:
        return read_leases(self._ask("lease/leases", {}, deadline_s, most_bytes))

    def lease(self, number: int, deadline_s: float, most_bytes: int, *, keys: bool) -> LeaseState | None:
        """A member that is not the leader asks the leader. keys: asks for the names of all of its keys, too."""
        given = {"ID": str(number), "keys": keys}
        return read_lease(self._ask("lease/timetolive", given, deadline_s, most_bytes))

    def metrics(self, deadline_s: float) -> dict[str, int]:
        return read_metrics(self._client.get("/metrics", deadline_s))

    def page(
        self,
        prefix: bytes,
        deadline_s: float,
        *,
        start: bytes = b"",
        limit: int = 0,
        since: int = 0,
        at: int = 0,
        count_only: bool = False,
        keys_only: bool = False,
    ) -> KeyPage:
        """Keys of a prefix, in their order. start: the first one. since: only those changed at this revision or later.
        at: as of this revision. Reads the member's own data, without asking the others (``serializable``).
        """
        wanted = {
            "key": base64.b64encode(start or prefix or b"\0").decode(),
            "range_end": base64.b64encode(prefix_end(prefix)).decode(),
            "limit": limit,
            "min_mod_revision": since,
            "revision": at,
            "count_only": count_only,
            "keys_only": keys_only,
            "serializable": True,
        }
        return read_page(self._ask("kv/range", wanted, deadline_s))

    def close(self) -> None:
        self._client.close()

    def _ask(self, what: str, given: dict[str, object], deadline_s: float, most_bytes: int = MAX_BODY_BYTES) -> bytes:
        body = json.dumps(given).encode()

        def answer() -> bytes:
            return self._client.get(f"/v3/{what}", deadline_s, token=self._token, body=body, most_bytes=most_bytes)

        try:
            return answer()
        except HttpDown as error:
            why, login = explained(error), self._server.login()
            # Without a token, or with one that has expired or is of the member before it was started again.
            if login is None or not (error.status == 401 or _NO_USER in str(why)):
                raise why from None
        self._asked, refused = True, None
        try:
            self._log_in(login, deadline_s)
        except HttpDown as error:  # what needs no right is answered nevertheless
            refused = error
        try:
            return answer()
        except HttpDown as error:
            raise refused or explained(error) from None

    def _log_in(self, login: tuple[str, str], deadline_s: float) -> None:
        self._token = ""
        body = json.dumps(dict(zip(("name", "password"), login, strict=True))).encode()
        try:
            given = _document(self._client.get("/v3/auth/authenticate", deadline_s, body=body))
        except HttpDown as error:
            why = explained(error)
            raise HttpDown(str(why), "login" if error.status else why.failure, error.status) from None
        self._token = _text(given, "token")
        if not self._token.isprintable() or not self._token.isascii():
            self._token = ""
            raise NotEtcd("its token is no text")


def explained(error: HttpDown) -> HttpDown:
    """With etcd's own words for it."""
    try:
        given = _document(error.body) if error.body else {}
        words = _text(given, "error") or _text(given, "message")  # 3.4, 3.5
    except NotEtcd:
        words = ""
    if not words and error.status == 404:
        return HttpDown("no JSON gateway: set enable-grpc-gateway: true; etcd before 3.4 has none", status=404)
    if not words:
        return error
    # Without a user, a cluster with users refuses as if the request were wrong.
    failure = "login" if error.status in (401, 403) or _NO_USER in words else error.failure
    return HttpDown(words.removeprefix("etcdserver: ")[:80], failure, error.status)
